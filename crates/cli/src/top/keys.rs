//! Keys from the bytes that a terminal sends.

/// A key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Escape,
    Interrupt,
    Suspend,
    Character(char),
}

/// The keys in the bytes of one read. A terminal sends the bytes of one key together. Unknown keys
/// are left out.
pub fn decode(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        let key = match first {
            0x03 => Key::Interrupt,
            0x1a => Key::Suspend,
            0x1b => match after {
                [b'[' | b'O', sequence @ ..] => {
                    let end = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte));
                    let (sequence, left) = match end {
                        Some(end) => sequence.split_at(end + 1),
                        None => (sequence, &[][..]),
                    };
                    rest = left;
                    match sequence {
                        b"A" => Key::Up,
                        b"B" => Key::Down,
                        b"C" => Key::Right,
                        b"D" => Key::Left,
                        b"5~" => Key::PageUp,
                        b"6~" => Key::PageDown,
                        b"H" | b"1~" | b"7~" => Key::Home,
                        b"F" | b"4~" | b"8~" => Key::End,
                        _ => continue,
                    }
                }
                _ => Key::Escape,
            },
            b' '..=b'~' => Key::Character(char::from(first)),
            _ => continue,
        };
        keys.push(key);
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_keys_and_others_are_left_out() {
        use Key::*;
        assert_eq!(decode(b"q?"), [Character('q'), Character('?')]);
        assert_eq!(decode(b"\x1b[A\x1bOB\x1b[5~\x1b[Hs"), [Up, Down, PageUp, Home, Character('s')]);
        assert_eq!(decode(b"\x03\x1a\x1b"), [Interrupt, Suspend, Escape]);
        // Modifiers, function keys, bytes outside ASCII, and an incomplete sequence.
        assert_eq!(decode(b"\x1b[1;5A\x1b[15~\xc3\xa9\x1b[12"), []);
        assert_eq!(decode(b""), []);
    }
}
