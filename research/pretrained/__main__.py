from research.pretrained.run import main

main()
