from research.photos.fit import main

main()
