from research.clinc.run import main

main()
