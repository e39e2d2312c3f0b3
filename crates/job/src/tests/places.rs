//! Where each character of a scalar stands in the file.

use crate::build::text;
use crate::text::JobText;
use crate::tree::{Typed, parse, type_of_plain};

/// Finds each of `words` in the value of `a` and in the file, and compares the places.
fn check(yaml: &str, words: &[&str]) {
    let (node, lints) = parse(&JobText::new("job.yaml", yaml), yaml);
    assert!(lints.is_empty(), "{yaml}: {lints:?}");
    let value = text(node.expect("a tree").get("a")).expect("a text");
    for word in words {
        let (line, column) = line_and_column(&value.value, word);
        let place = value.locate(line, column);
        assert_eq!((place.line, place.column), line_and_column(yaml, word), "{word} in {yaml:?}");
    }
}

fn line_and_column(text: &str, word: &str) -> (usize, usize) {
    let before = &text[..text.find(word).unwrap_or_else(|| panic!("{word} in {text:?}"))];
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[test]
fn places_survive_every_style() {
    let words = ["SELECT", "ä", "two", "three", "end"];
    check("a: |\n  SELECT ä,\n    two\n\n  three\n  end\n", &words);
    check("a: |2-\n\n    SELECT ä,\n\n\n  two three\n  end\n", &words);
    check("# x\nz: 1\na: >\n  SELECT ä\n  two\n\n  three\n\n    end\n", &words);
    check("a: >-\n\n  SELECT ä\n  two three end\n", &words);
    check("a: SELECT ä two three end # c\n", &words);
    check("a: SELECT ä\n   two\n\n   three\n  end\n", &words);
    check("a: 'SELECT ä ''x'' two ''three'' end'\n", &words);
    check("a: \"SELECT \\\"x\\\" \\u00e5\\tä two\\\\ \\x41three end\"\n", &words);
    check("a: \"SELECT ä\n   two \\\n   three\n\n   end\"\n", &words);
    check("{\"a\": SELECT ä two three end}\n", &words);
    check("a: &x |\n  SELECT ä\n  two three end\n", &words);
    check("a: !!str SELECT ä two three end\n", &words);
    check("a: &x 'SELECT ä two three end'\n", &words);
    check("\u{feff}z: 1\r\na: |\r\n  SELECT ä\r\n  two three\r\n  end\r\n".trim_start_matches('\u{feff}'), &words);
}

#[test]
fn a_place_behind_the_end_is_the_end() {
    let yaml = "a: |\n  one\n  two\n";
    let value = text(parse(&JobText::new("j", yaml), yaml).0.expect("a tree").get("a")).expect("a text");
    for (line, column, expected) in [(1, 99, (2, 6)), (2, 4, (3, 6)), (9, 9, (3, 6)), (0, 0, (2, 3))] {
        let place = value.locate(line, column);
        assert_eq!((place.line, place.column), expected, "{line}:{column}");
    }
}

#[test]
fn plain_scalars_have_the_types_of_yaml_1_2() {
    for (text, typed) in [
        ("", Typed::Null),
        ("~", Typed::Null),
        ("null", Typed::Null),
        ("true", Typed::Bool(true)),
        ("no", Typed::Text),
        ("on", Typed::Text),
        ("12", Typed::Integer(12)),
        ("-0", Typed::Integer(0)),
        ("+7", Typed::Integer(7)),
        ("007", Typed::Integer(7)),
        ("0o17", Typed::Integer(15)),
        ("0x1F", Typed::Integer(31)),
        ("18446744073709551615", Typed::Integer(u64::MAX as i128)),
        ("18446744073709551616", Typed::Float(18446744073709551616.0)),
        ("1.", Typed::Float(1.0)),
        (".5", Typed::Float(0.5)),
        ("-1.5e-3", Typed::Float(-0.0015)),
        ("1e3", Typed::Float(1000.0)),
        (".", Typed::Text),
        ("e3", Typed::Text),
        ("1e", Typed::Text),
        ("1_000", Typed::Text),
        ("12:30", Typed::Text),
        ("2024-12-31", Typed::Text),
        ("1.2.3", Typed::Text),
        ("infinity", Typed::Text),
        ("nan", Typed::Text),
    ] {
        assert_eq!(type_of_plain(text), typed, "{text}");
    }
    assert!(matches!(type_of_plain(".NaN"), Typed::Float(value) if value.is_nan()));
}
