from research.models.run import main

main()
