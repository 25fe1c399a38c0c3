//! The actions of logical flows.

use pipeline::Direction;
use lflow::actions::{self, Stage};
use lflow::symbol::Symbol;

/// Parses actions; true when they are in the language. Then they are compiled, printed, and parsed
/// to the same again. A refusal points into the text.
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
