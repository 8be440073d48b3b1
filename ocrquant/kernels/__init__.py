"""Operations with a plain reference and faster implementations beside it; nothing here knows of models or recipes."""
