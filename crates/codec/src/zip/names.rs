//! Decodes the names of members. [`crate::members`] selects by them.
//!
//! A name is data. It goes into messages and into the column that a source adds for it, and is never used as a path. So
//! `../../x`, `/etc/passwd` and `C:\x` are read like any other member (`zip ../x` makes such archives), and code that
//! makes a path of a name must check it. Only a NUL is refused, since tools disagree on where such a name ends and
//! would read different members.

use super::record::{EXTRA_UNICODE_NAME, FLAG_UTF8, extra_field, u32_at};

/// The upper half of code page 437, from byte 128.
const CODE_PAGE_437: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧\
╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";

/// A name as text. A Unicode name in the extra fields wins if it belongs to this name. Otherwise valid UTF-8 is decoded
/// as UTF-8, with or without the flag for it (macOS does not set it). Other names are code page 437 if the flag is
/// clear, as the specification says; if it is set, bad bytes are replaced.
pub(super) fn decode(name: &[u8], flags: u16, extra: &[u8]) -> String {
    if let Some(unicode) = unicode_name(name, extra) {
        return unicode;
    }
    match std::str::from_utf8(name) {
        Ok(name) => name.to_owned(),
        Err(_) if flags & FLAG_UTF8 != 0 => String::from_utf8_lossy(name).into_owned(),
        Err(_) => name.iter().map(|&byte| from_code_page_437(byte)).collect(),
    }
}

/// Info-ZIP's Unicode path field: version 1, the checksum of the name it stands for, the name.
fn unicode_name(name: &[u8], extra: &[u8]) -> Option<String> {
    let field = extra_field(extra, EXTRA_UNICODE_NAME)?;
    let belongs = field.first() == Some(&1) && u32_at(field, 1) == crc32fast::hash(name);
    belongs.then(|| std::str::from_utf8(field.get(5..)?).ok().map(str::to_owned)).flatten()
}

fn from_code_page_437(byte: u8) -> char {
    match byte {
        0..=127 => char::from(byte),
        high => CODE_PAGE_437.chars().nth(usize::from(high) - 128).unwrap_or(char::REPLACEMENT_CHARACTER),
    }
}
