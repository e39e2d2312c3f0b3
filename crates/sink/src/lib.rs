//! Where Millstream writes to: files, SQLite, standard output
