def read_file(path: str) -> str:
    "Reads a file."
    open("ran", "w").close()
    return open(path).read()
