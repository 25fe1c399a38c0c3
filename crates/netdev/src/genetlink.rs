//! Generic netlink: families that are known by name, such as `ethtool` and `netdev`.

use crate::attributes::{AttributeBuf, Attributes};
use crate::request::{Requester, Scope};
use crate::{Error, Result};

const NETLINK_GENERIC: isize = 16;
/// The controller, which knows the numbers of the others: family, command, and attributes.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `struct genlmsghdr`.
const HEADER_BYTES: usize = 4;

/// A generic netlink family of the namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Family {
    requester: Requester,
    id: u16,
    name: &'static str,
}

impl Family {
    /// Opens the family `name`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when this kernel does not have it.
    pub(crate) fn open(name: &'static str) -> Result<Self> {
        let requester = Requester::open(NETLINK_GENERIC)?;
        let what = format!("find the netlink family {name}");
        let attributes = AttributeBuf::default().text(FAMILY_NAME, name);
        let answers =
            requester.ask(&what, CONTROLLER, Scope::One, &message(GET_FAMILY, attributes))?;
        let id = answers
            .first()
            .and_then(|answer| answer.get(HEADER_BYTES..))
            .and_then(|bytes| Attributes::new(bytes).number(FAMILY_ID))
            .and_then(|id| u16::try_from(id).ok())
            .ok_or_else(|| Error::malformed(what, "an answer without the number"))?;
        Ok(Self { requester, id, name })
    }

    /// Asks for something; returns the attributes of each answer.
    pub(crate) fn ask(
        &self,
        what: &str,
        command: u8,
        scope: Scope,
        attributes: AttributeBuf,
    ) -> Result<Vec<Vec<u8>>> {
        let answers = self.requester.ask(what, self.id, scope, &message(command, attributes))?;
        answers
            .into_iter()
            .map(|answer| {
                let bytes = answer.get(HEADER_BYTES..).map(<[u8]>::to_vec);
                let reason = format!("less than a header from {}", self.name);
                bytes.ok_or_else(|| Error::malformed(what.to_owned(), reason))
            })
            .collect()
    }
}

fn message(command: u8, attributes: AttributeBuf) -> Vec<u8> {
    let mut bytes = vec![command, 1, 0, 0];
    bytes.extend(attributes.into_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_is_not_found_when_the_kernel_has_none_of_that_name() {
        assert!(Family::open("no-such-family").unwrap_err().is_not_found());
        assert!(Family::open("nlctrl").is_ok());
    }
}
