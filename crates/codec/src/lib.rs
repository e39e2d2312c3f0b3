//! Millstream's codecs: gzip, zstd, bzip2, xz and zip
