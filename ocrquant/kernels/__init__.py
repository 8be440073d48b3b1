"""Operations with a plain reference and faster implementations beside it.

Nothing here knows of models or recipes.
"""
