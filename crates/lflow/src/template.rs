//! Template variables: `^name` in flows and load balancers, of which each host has its own value.

use super::lexer::Lexer;
use super::token::TokenKind;
use std::borrow::Cow;

/// Replaces template variables by their values. As in ovn-controller, a variable without a value is
/// replaced by its name without `^`, and variables in quoted strings are not replaced.
pub fn expand_templates<'t, V: AsRef<str>>(
    text: &'t str,
    mut value: impl FnMut(&str) -> Option<V>,
) -> Cow<'t, str> {
    if !text.contains('^') {
        return text.into();
    }
    let mut expanded = String::new();
    let mut lexer = Lexer::new(text);
    let mut copied = 0;
    while *lexer.kind() != TokenKind::End {
        let token = lexer.advance();
        if let TokenKind::Template(name) = token.kind {
            expanded.push_str(lexer.text(copied..token.span.start));
            match value(name) {
                Some(value) => expanded.push_str(value.as_ref()),
                None => expanded.push_str(name),
            }
            copied = token.span.end;
        }
    }
    expanded.push_str(lexer.text(copied..text.len()));
    expanded.into()
}

#[cfg(test)]
mod tests {
    use super::expand_templates;

    #[test]
    fn variables_are_expanded_outside_of_strings() {
        let value = |name: &str| match name {
            "vip" => Some("10.0.0.9"),
            "port" => Some("80"),
            _ => None,
        };
        for (text, expected) in [
            ("ip4.dst == 10.0.0.1", "ip4.dst == 10.0.0.1"),
            ("ip4.dst == ^vip && tcp.dst==^port", "ip4.dst == 10.0.0.9 && tcp.dst==80"),
            ("^vip:^port", "10.0.0.9:80"),
            ("ct_lb_mark(backends=^none);", "ct_lb_mark(backends=none);"),
            ("inport == \"^vip\" && ip4.dst == ^vip", "inport == \"^vip\" && ip4.dst == 10.0.0.9"),
            ("^ ^1 ^vip", "^ ^1 10.0.0.9"),
        ] {
            assert_eq!(expand_templates(text, value), expected, "{text}");
        }
    }
}
