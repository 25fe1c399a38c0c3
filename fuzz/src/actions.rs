//! Target: the actions of logical flows.

use lflow::actions::{self, Stage};
use lflow::symbol::Symbol;
use pipeline::Direction;

/// Parses actions. Valid ones are compiled and printed, and the printed text must parse to the same
/// actions. The position of an error must be inside the text. Returns whether the text is valid.
pub fn text(bytes: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(bytes) else { return false };
    let Some(stage) = Stage::new(Direction::Ingress, 2, 30) else { return false };
    match actions::parse(text, stage) {
        Ok(actions) => {
            let printed = actions.to_string();
            assert_eq!(actions::parse(&printed, stage).as_ref(), Ok(&actions), "{printed}");
            assert!(actions.prerequisites().into_iter().all(|name| Symbol::find(name).is_some()));
            actions::compile(&actions, &());
            true
        }
        Err(error) => {
            assert!(text.get(error.span.clone()).is_some(), "{error:?}");
            false
        }
    }
}
