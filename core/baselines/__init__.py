"""The methods that the papers compare with, one file each; the file's name is the method's."""
