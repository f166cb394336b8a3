from research.zoo.run import main

main()
