from research.uci.run import main

main()
