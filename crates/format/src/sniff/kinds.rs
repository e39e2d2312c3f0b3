//! Recognises files that are neither text nor a known format by their first bytes, with hints what to do.
//!
//! A text can begin with the letters of a mark. So marks of letters only count if bytes follow that no text has.

use millstream_core::Error;

/// A kind of file.
struct Kind {
    /// Its first bytes.
    mark: &'static [u8],
    /// The byte at which the mark is.
    at: usize,
    /// With its article, as in "it is …".
    name: &'static str,
    hint: &'static str,
    proof: Proof,
}

/// What is needed besides the mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// Nothing: no text has it.
    Mark,
    /// A byte near it that no text has.
    Binary,
    /// It is text, but of another kind than ours; lines of it can be read.
    Text,
    /// It is of a known format and no text; other code finds the format.
    Ours,
}

const EXCEL: &str = "save it as CSV in the spreadsheet program, and read that";
const SQLITE: &str = "read a table of it: `read: sqlite:FILE` with `table` or `query`";
const PICTURE: &str = "it holds no rows; correct what `read` names";
const UNPACK: &str = "unpack it, or pack it with gzip, zstd, bzip2, xz, zip or tar";
const COLUMNS: &str = "convert it to Parquet or CSV, for example with pyarrow or DuckDB";
const PYTHON: &str = "write it as Parquet or CSV from Python (`DataFrame.to_parquet`)";
const EXPORT: &str = "export it as CSV from the program that wrote it";
const DUMP: &str = "restore it, and read the tables from the database";
const MARKUP: &str = "only csv, json, lines and parquet are read; export the rows as one of them";

const fn kind(mark: &'static [u8], name: &'static str, hint: &'static str) -> Kind {
    Kind { mark, at: 0, name, hint, proof: Proof::Mark }
}

const fn binary(mark: &'static [u8], name: &'static str, hint: &'static str) -> Kind {
    Kind { mark, at: 0, name, hint, proof: Proof::Binary }
}

const fn text(mark: &'static [u8], name: &'static str, hint: &'static str) -> Kind {
    Kind { mark, at: 0, name, hint, proof: Proof::Text }
}

const KINDS: &[Kind] = &[
    kind(
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an Excel workbook of the old kind (.xls), or another old Office file",
        EXCEL,
    ),
    kind(b"Obj\x01", "an Avro file", COLUMNS),
    binary(b"ORC", "an ORC file", COLUMNS),
    kind(b"ARROW1\0\0", "an Arrow IPC file (Feather)", COLUMNS),
    kind(b"\xff\xff\xff\xff", "an Arrow IPC stream", COLUMNS),
    binary(b"FEA1", "a Feather file", COLUMNS),
    Kind {
        mark: b"PAR1\x15",
        at: 0,
        name: "a Parquet file",
        hint: "read it with `parquet: {}`; a name that ends in .parquet says so too",
        proof: Proof::Ours,
    },
    binary(b"PARE", "a Parquet file with an encrypted footer", "encrypted files are not supported: decrypt it first"),
    kind(b"SQLite format 3\0", "a SQLite database", SQLITE),
    Kind {
        mark: b"DUCK",
        at: 8,
        name: "a DuckDB database",
        hint: "write the tables as Parquet: `COPY t TO 't.parquet'`",
        proof: Proof::Binary,
    },
    Kind { mark: b"Standard ", at: 4, name: "an Access database", hint: EXPORT, proof: Proof::Binary },
    kind(b"%PDF-", "a PDF document", "get its source data as CSV; tables in a PDF are drawings"),
    kind(b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    kind(b"Rar!\x1a\x07", "a RAR archive", UNPACK),
    binary(b"MSCF\0\0\0\0", "a cabinet archive", UNPACK),
    kind(b"\x04\x22\x4d\x18", "compressed with lz4", UNPACK),
    kind(b"\xff\x06\0\0sNaPpY", "compressed with snappy", UNPACK),
    kind(b"\x89HDF\r\n\x1a\n", "an HDF5 file", EXPORT),
    binary(b"CDF\x01", "a NetCDF file", EXPORT),
    binary(b"CDF\x02", "a NetCDF file", EXPORT),
    binary(b"CDF\x05", "a NetCDF file", EXPORT),
    binary(b"MATLAB 5.0 MAT-file", "a MATLAB file", EXPORT),
    kind(b"\x93NUMPY", "a NumPy array", PYTHON),
    kind(b"\x80\x02}", "a Python pickle", PYTHON),
    kind(b"\x80\x02]", "a Python pickle", PYTHON),
    kind(b"\x80\x02c", "a Python pickle", PYTHON),
    kind(b"\x80\x03", "a Python pickle", PYTHON),
    kind(b"\x80\x04\x95", "a Python pickle", PYTHON),
    kind(b"\x80\x05\x95", "a Python pickle", PYTHON),
    binary(b"RDX2\n", "an R workspace", EXPORT),
    binary(b"RDX3\n", "an R workspace", EXPORT),
    binary(b"X\n\0\0\0", "an R object (.rds)", EXPORT),
    binary(b"$FL2", "an SPSS file", EXPORT),
    binary(b"$FL3", "an SPSS file", EXPORT),
    binary(b"<stata_dta>", "a Stata file", EXPORT),
    Kind {
        mark: b"\xc2\xea\x81\x60\xb3\x14\x11\xcf",
        at: 12,
        name: "a SAS data set",
        hint: EXPORT,
        proof: Proof::Mark,
    },
    binary(b"PGDMP", "a dump of PostgreSQL", DUMP),
    binary(b"bplist00", "a binary property list", EXPORT),
    kind(b"\x89PNG\r\n\x1a\n", "a PNG picture", PICTURE),
    kind(b"\xff\xd8\xff", "a JPEG picture", PICTURE),
    binary(b"GIF87a", "a GIF picture", PICTURE),
    binary(b"GIF89a", "a GIF picture", PICTURE),
    kind(b"II*\0", "a TIFF picture", PICTURE),
    kind(b"MM\0*", "a TIFF picture", PICTURE),
    kind(b"\x7fELF", "a program", PICTURE),
    binary(b"MZ", "a program", PICTURE),
    text(b"{\\rtf", "an RTF document", MARKUP),
    text(
        b"<!doctype html",
        "a page of HTML",
        "a server may answer with a page for logging in or an error; see what the address returns",
    ),
    text(
        b"<html",
        "a page of HTML",
        "a server may answer with a page for logging in or an error; see what the address returns",
    ),
    text(b"<?xml", "an XML file", MARKUP),
];

/// The error that names the kind of a file that begins with `head`, if it is a known one. Some kinds are text, and no
/// error if `lines` of any text can be read.
pub fn foreign_text(head: &[u8], lines: bool) -> Option<Error> {
    let found = KINDS.iter().find(|kind| kind.is(head))?;
    if lines && matches!(found.proof, Proof::Text | Proof::Ours) {
        return None;
    }
    Some(named(found.name, found.hint))
}

/// The error that names the kind of a zip by one of its first members: spreadsheets and documents are zips.
pub fn foreign_member(uri: &str, member: &str) -> Option<Error> {
    // Folders of these names may also hold data.
    let is_part = [".xml", ".rels", ".bin", ".vml"].iter().any(|ending| member.ends_with(ending));
    let begins = |folder: &str| is_part && member.starts_with(folder);
    let path = millstream_core::unit::path_of(uri).to_ascii_lowercase();
    let is_office =
        member == "[Content_Types].xml" || member == "_rels/.rels" || begins("docProps/") || begins("customXml/");
    let spreadsheet = [".xlsx", ".xlsm", ".xlsb", ".xltx"].iter().any(|ending| path.ends_with(ending));
    if begins("xl/") || (is_office && spreadsheet) {
        return Some(named("an Excel workbook", EXCEL));
    }
    if begins("word/") || begins("ppt/") || is_office {
        return Some(named("an Office document (Excel, Word or PowerPoint)", EXCEL));
    }
    if member.ends_with(".iwa") || path.ends_with(".numbers") {
        return Some(named("a Numbers spreadsheet", EXCEL));
    }
    if member == "mimetype" && !path.ends_with(".zip") {
        return Some(named("an OpenDocument file (a LibreOffice spreadsheet or text), or an EPUB", EXCEL));
    }
    None
}

fn named(name: &str, hint: &str) -> Error {
    let what = if name.starts_with("compressed") {
        format!("the file is {name}, which is not supported")
    } else {
        format!("the file is {name}")
    };
    Error::data(what).hint(hint)
}

impl Kind {
    fn is(&self, head: &[u8]) -> bool {
        let look = &head[..head.len().min(512)];
        match self.proof {
            Proof::Mark | Proof::Ours => begins(look, self.at, self.mark),
            Proof::Binary => begins(look, self.at, self.mark) && look.iter().any(|byte| is_binary(*byte)),
            Proof::Text => {
                let text = look.strip_prefix(b"\xef\xbb\xbf").unwrap_or(look).trim_ascii_start();
                text.len() >= self.mark.len() && text[..self.mark.len()].eq_ignore_ascii_case(self.mark)
            }
        }
    }
}

fn begins(head: &[u8], at: usize, mark: &[u8]) -> bool {
    head.get(at..).is_some_and(|head| head.starts_with(mark))
}

/// Whether no text has that byte, except for separators of fields and lines.
fn is_binary(byte: u8) -> bool {
    byte < 0x20 && !matches!(byte, b'\n' | b'\r' | b'\t' | 0x01 | 0x0c | 0x1b..=0x1f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_kinds_are_named() {
        for (head, name) in [
            (&b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0\0"[..], "Excel"),
            (b"Obj\x01\x04\x14avro.codec", "Avro"),
            (b"ORC\n\x0b\0\0", "ORC"),
            (b"ARROW1\0\0\xff\xff", "Arrow IPC file"),
            (b"SQLite format 3\0\x10\0", "SQLite"),
            (b"%PDF-1.7\n%", "PDF"),
            (b"\0\0\0\0\0\0\0\0DUCK\x40\0", "DuckDB"),
            (b"\x80\x04\x95\x10\0", "pickle"),
            (b"\xef\xbb\xbf\n<!DOCTYPE HTML><html>", "HTML"),
        ] {
            let error = foreign_text(head, false).unwrap_or_else(|| panic!("{name}"));
            assert!(error.what().contains(name), "{name}: {}", error.what());
            assert!(error.hint_text().is_some());
        }
        assert!(foreign_text(b"<?xml version='1.0'?>\n<a/>", true).is_none(), "lines of XML are text");
    }

    #[test]
    fn a_text_that_begins_with_the_same_letters_is_text() {
        for head in [
            &b"ORC,elf\n1,2\n"[..],
            b"MZ,a\n",
            b"PARENT,b\n",
            b"CDF\tb\n",
            b"GIF89a,x\n",
            b"PAR1,PAR2\n1,2\n",
            b"id,name\n",
            b"",
            b"7z",
        ] {
            assert!(foreign_text(head, false).is_none(), "{:?}", String::from_utf8_lossy(head));
        }
    }

    #[test]
    fn spreadsheets_are_zips() {
        for (uri, member, name) in [
            ("a.xlsx", "[Content_Types].xml", "an Excel workbook"),
            ("a.zip", "xl/workbook.xml", "an Excel workbook"),
            ("a.docx", "word/document.xml", "an Office document"),
            ("a.numbers", "Index/Document.iwa", "a Numbers"),
            ("a.ods", "mimetype", "an OpenDocument"),
        ] {
            assert!(foreign_member(uri, member).expect(uri).what().contains(name), "{uri}");
        }
        for member in ["in/a.csv", "word/counts.csv", "xl/2024.csv", "docProps/a.csv", "mimetype"] {
            assert!(foreign_member("a.zip", member).is_none(), "{member}");
        }
    }
}
