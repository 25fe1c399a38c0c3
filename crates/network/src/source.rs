//! Maps a position in the value of a TOML string to a position in the file.

/// The byte offset in `text` of byte `offset` in the value of the string whose quote is at `at`.
/// For an `offset` past the value it is the end of the string.
pub(crate) fn inside_string(text: &str, at: usize, offset: usize) -> usize {
    let Some(string) = text.get(at..) else { return at };
    let (opening, escapes) = if string.starts_with("\"\"\"") {
        (3, true)
    } else if string.starts_with("'''") {
        (3, false)
    } else {
        (1, string.starts_with('"'))
    };
    // TOML ignores a newline directly after an opening triple quote.
    let skipped = match string.get(opening..) {
        Some(rest) if opening == 3 && rest.starts_with("\r\n") => 2,
        Some(rest) if opening == 3 && rest.starts_with('\n') => 1,
        _ => 0,
    };
    let mut place = opening + skipped;
    let mut value = 0;
    while let Some(rest) = string.get(place..) {
        let (source_len, value_len) = match rest.chars().next() {
            Some('\\') if escapes => escape(rest),
            Some(plain) => (plain.len_utf8(), plain.len_utf8()),
            None => break,
        };
        if value + value_len > offset {
            break;
        }
        place += source_len;
        value += value_len;
    }
    at + place
}

/// The lengths of an escape sequence at the start of `text` and of the character that it
/// represents.
fn escape(text: &str) -> (usize, usize) {
    let hex_digits = match text.as_bytes().get(1) {
        Some(b'x') => 2,
        Some(b'u') => 4,
        Some(b'U') => 8,
        Some(b' ' | b'\t' | b'\r' | b'\n') => {
            // A line continuation.
            let blank = text[1..].bytes().take_while(u8::is_ascii_whitespace).count();
            return (1 + blank, 0);
        }
        _ => return (2, 1),
    };
    let digits = text.get(2..2 + hex_digits).unwrap_or_default();
    let character = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
    (2 + hex_digits, character.map_or(1, char::len_utf8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use toml::de::DeTable;

    /// For each of TOML's four kinds of strings, each character of the value is found in the file.
    #[test]
    fn place_is_that_of_the_character_when_the_string_has_escapes() {
        let cases = [
            ("k = 'ab z'", "z", "z'"),
            ("k = \"a\\\"bß z\"", "z", "z\""),
            ("k = \"a\\\"bß z\"", "\"", "\\\"b"),
            ("k = \"\\u00e9\\U0001F600\\tz\"", "z", "z\""),
            ("k = '''\nab\n'z'''", "z", "z'''"),
            ("k = \"\"\"\r\na \\\n   b z\"\"\"", "z", "z\"\"\""),
        ];
        for (text, expected, rest) in cases {
            let table = DeTable::parse(text).unwrap();
            let value = table.get_ref().get("k").unwrap();
            let offset = value.get_ref().as_str().unwrap().find(expected).unwrap();
            let place = inside_string(text, value.span().start, offset);
            assert!(text[place..].starts_with(rest), "{text:?} {place}");
        }
    }

    #[test]
    fn place_is_the_end_when_the_offset_is_beyond_the_value() {
        assert_eq!(inside_string("'ab'", 0, 99), 4);
        assert_eq!(inside_string("x", 5, 0), 5);
    }
}
