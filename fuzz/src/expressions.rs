//! Target: the match expressions of logical flows.

use lflow::expr::{self, parse_microflow};

/// Parses an expression. A valid one is compiled and printed, and the printed text must parse to
/// the same expression. The position of an error must be inside the text. Returns whether it is
/// valid.
pub fn text(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else { return false };
    match expr::parse(text) {
        Ok(expression) => {
            let printed = expression.to_string();
            assert_eq!(expr::parse(&printed).as_ref(), Ok(&expression), "{printed}");
            let compiled = expr::compile(&expression, &());
            assert!(compiled.residual.is_none() || !compiled.rows.is_empty(), "{printed}");
            if let Err(error) = parse_microflow(text, &()) {
                assert!(text.get(error.span.clone()).is_some(), "{error:?}");
            }
            true
        }
        Err(error) => {
            assert!(text.get(error.span.clone()).is_some(), "{error:?}");
            false
        }
    }
}
