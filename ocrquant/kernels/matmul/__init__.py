"""Matrix products on GPUs: a table of who serves which (``table``), calls into libraries (``library``)."""
