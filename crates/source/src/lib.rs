//! Where Millstream reads from: files, standard input, HTTP
