use super::*;
use proptest::prelude::*;

/// The tokens of a text in canonical form.
fn tokens(text: &str) -> String {
    let mut lexer = Lexer::new(text);
    let mut written = Vec::new();
    while *lexer.kind() != TokenKind::End {
        written.push(lexer.advance().kind.to_string());
    }
    written.join(" ")
}

/// Texts that are in canonical form already.
const SAME: &[&str] = &[
    "foo bar baz quuxquuxquux _abcd_ a.b.c.d a123_.456",
    "$foo $bar $_abcd_ $a.b.c.d $a123_.456 @pg @_1 ^tmpl",
    "0 1 12345 18446744073709551615",
    "0/0 0/1 1/1 128/384 1/3",
    "0x1234 0xfedcba9876543210 0xfedcba9876543210fedcba9876543210",
    "0/0x1 0xffff/0x1ffff",
    "192.168.128.1 1.2.3.4 255.255.255.255 0.0.0.0",
    "192.168.0.0/16 192.168.0.0/255.255.0.255 192.168.0.2/32 0.0.0.0/0",
    ":: ::1 ff00::1234 2001:db8:85a3::8a2e:370:7334 ::ffff:192.0.2.128 ::1.2.3.4",
    "::1/::1 ::1/128 ff00::/8 ::/0",
    "01:23:45:67:ab:cd 01:00:00:00:00:00/01:00:00:00:00:00",
    "( ) { } [ ] == != < <= > >= ! && || .. , ; = <-> -- : -",
    r#""" "x\"y\\z\b\f\n\r\t\u0001é" "#,
];

const REWRITTEN: &[(&str, &str)] = &[
    (r#""abc\u0020def""#, r#""abc def""#),
    (r#""\/\u00e9\ud83d\ude00""#, r#""/é😀""#),
    (r#"" "#, r#"error("Input ends inside quoted string.")"#),
    (r#""a\"#, r#"error("Input ends inside quoted string.")"#),
    (r#""\x" a"#, r#"error("Bad escape `\\x' in quoted string.") a"#),
    (r#""\u12" a"#, r#"error("Malformed `\\u' escape in quoted string.") a"#),
    (r#""\ud800" a"#, r#"error("Unpaired surrogate in quoted string.") a"#),
    (r#""\ud800\u0041" a"#, r#"error("Unpaired surrogate in quoted string.") a"#),
    (r#""\u0000" a"#, r#"error("Null character in quoted string.") a"#),
    ("$1", r#"error("`$' must be followed by a valid identifier.") 1"#),
    ("@", r#"error("`@' must be followed by a valid identifier.")"#),
    ("^ x", r#"error("`^' must be followed by a valid identifier.") x"#),
    ("a/*b*/c", "a c"),
    ("a//b c", "a"),
    ("a//b\nc", "a c"),
    ("a/**/b", "a b"),
    ("a/*/b", r#"a error("`/*' without matching `*/'.")"#),
    (
        "a/*x\n*/b",
        r#"a error("`/*' without matching `*/'.") error("Invalid character `*' in input.") error("`/' is only valid as part of `//' or `/*'.") b"#,
    ),
    ("a/*/**/b", "a b"),
    ("a/b", r#"a error("`/' is only valid as part of `//' or `/*'.") b"#),
    ("18446744073709551616", r#"error("Decimal constants must be less than 2**64.")"#),
    ("9999999999999999999999", r#"error("Decimal constants must be less than 2**64.")"#),
    ("01", r#"error("Decimal constants must not have leading zeros.")"#),
    ("1/0", "0/0"),
    ("1/", r#"error("Integer constant expected.")"#),
    ("1/-", r#"error("Integer constant expected.") -"#),
    ("1/0x123", r#"error("Value and mask have incompatible formats.")"#),
    ("1.2.3.4/33", r#"error("Value and mask have incompatible formats.")"#),
    ("::/129", r#"error("Value and mask have incompatible formats.")"#),
    ("0x01234", "0x1234"),
    ("0x0 0x000", "0 0"),
    ("0XFEDCBA9876543210", "0xfedcba9876543210"),
    ("0x0000fedcba9876543210fedcba9876543210", "0xfedcba9876543210fedcba9876543210"),
    (
        "0x1fedcba9876543210fedcba9876543210",
        r#"error("Hexadecimal constant requires more than 128 bits.")"#,
    ),
    ("0x", r#"error("Hex digits expected following 0x.")"#),
    ("0X", r#"error("Hex digits expected following 0X.")"#),
    ("0x.", r#"error("Invalid syntax in hexadecimal constant.")"#),
    ("0xg", r#"error("Invalid syntax in hexadecimal constant.")"#),
    ("0x0/0x0 0x0/0x1 0x1/0x0", "0/0 0/0x1 0/0"),
    ("256.1.2.3", r#"error("Invalid numeric constant.")"#),
    ("1.2.3", r#"error("Invalid numeric constant.")"#),
    ("192.168.0.0/255.255.0.0 192.168.0.0/255.0.0.0", "192.168.0.0/16 192.0.0.0/8"),
    ("192.168.0.2/30 192.168.0.2/24", "192.168.0.0/30 192.168.0.0/24"),
    ("1.2.3.4:5", "1.2.3.4 : 5"),
    ("1..2 0x1..0x2", "1 .. 2 0x1 .. 0x2"),
    ("2001:0db8:85a3:0000:0000:8a2e:0370:7334", "2001:db8:85a3::8a2e:370:7334"),
    ("::ffff:c000:0280", "::ffff:192.0.2.128"),
    ("::1/ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ff00::/ff00::", "::1/128 ff00::/8"),
    ("FE:DC:ba:98:76:54", "fe:dc:ba:98:76:54"),
    ("ff:ff:ff:ff:ff:ff/fe:ff:ff:ff:ff:ff", "fe:ff:ff:ff:ff:ff/fe:ff:ff:ff:ff:ff"),
    ("fe:x", r#"error("Invalid numeric constant.")"#),
    ("00:01:02:03:04:x", r#"error("Invalid numeric constant.")"#),
    ("(){}[]==!=<<=>>=!&&||..,;=<->--:-", SAME[11]),
    ("&", r#"error("`&' is only valid as part of `&&'.")"#),
    ("|x", r#"error("`|' is only valid as part of `||'.") x"#),
    (
        "a % é \u{1}",
        r#"a error("Invalid character `%' in input.") error("Invalid character `é' in input.") error("Invalid byte 0x01 in input.")"#,
    ),
];

#[test]
fn tokens_are_printed_in_the_notation_of_the_language() {
    for text in SAME {
        assert_eq!(tokens(text), text.trim_end(), "{text}");
    }
    for (text, written) in REWRITTEN {
        assert_eq!(tokens(text), *written, "{text}");
    }
}

#[test]
fn tokens_have_their_position() {
    let text = "ip4.src==1.2.3.4/24 /* é */ \"é\" $a";
    let mut lexer = Lexer::new(text);
    let mut found = Vec::new();
    while *lexer.kind() != TokenKind::End {
        assert!(lexer.lookahead().span.start >= lexer.span().end);
        found.push(lexer.text(lexer.span()));
        lexer.advance();
    }
    assert_eq!(found, ["ip4.src", "==", "1.2.3.4/24", "\"é\"", "$a"]);
    assert_eq!(lexer.span(), text.len()..text.len());
}

#[test]
fn expectations_point_at_the_token_found() {
    let mut lexer = Lexer::new("a 5 0x5 5/1 2147483648 & ");
    assert_eq!(
        lexer.expect(&TokenKind::RightParen).unwrap_err(),
        SyntaxError::new(0..1, "Syntax error at `a' expecting `)'.")
    );
    assert!(lexer.accept_identifier("a") && !lexer.accept_identifier("a"));
    assert_eq!(lexer.expect_small_integer(), Ok(5));
    for found in ["0x5", "5/1", "2147483648"] {
        let message = format!("Syntax error at `{found}' expecting small integer.");
        assert_eq!(lexer.expect_small_integer().unwrap_err().message, message);
        lexer.advance();
    }
    assert_eq!(lexer.expecting("peace").message, "`&' is only valid as part of `&&'.");
    lexer.advance();
    assert_eq!(lexer.expecting("more").message, "Syntax error at end of input expecting more.");
    assert!(lexer.expect(&TokenKind::End).is_ok());
}

#[test]
fn long_tokens_are_cut_in_messages() {
    let text = "é".repeat(10_000);
    let quoted = format!("\"{text}\"");
    let message = Lexer::new(&quoted).expecting("peace").message;
    assert!(message.len() < 200 && message.contains("é...' expecting"), "{message}");
}

#[test]
fn hostile_texts_take_linear_time() {
    for piece in ["/ ", "a:", "\"\\", "a", "0", "/*", "..", "1/", "$", "\u{7f}"] {
        let text = piece.repeat(200_000);
        let mut lexer = Lexer::new(&text);
        let mut count = 0;
        while *lexer.kind() != TokenKind::End {
            lexer.advance();
            count += 1;
        }
        assert!(count > 0, "{piece}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_to_its_end(text in "\\PC*|[-&|!=<>(){}\\[\\].,;:/*\"\\\\$@^0-9a-fx \n]*") {
        let mut lexer = Lexer::new(&text);
        let mut end = 0;
        while *lexer.kind() != TokenKind::End {
            let token = lexer.advance();
            prop_assert!(token.span.start >= end && token.span.end > token.span.start);
            end = token.span.end;
            if !matches!(token.kind, TokenKind::Error(_)) {
                let written = token.kind.to_string();
                let again = Lexer::new(&written);
                match (again.kind(), &token.kind) {
                    (TokenKind::Integer(a), TokenKind::Integer(b)) => {
                        prop_assert_eq!((a.value, a.mask), (b.value, b.mask));
                    }
                    (a, b) => prop_assert_eq!(a, b),
                }
            }
        }
    }
}
