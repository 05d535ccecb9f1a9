"""The rules: a folder for each area, a file for each use case; knows neither HTTP nor the wire nor SQL."""
