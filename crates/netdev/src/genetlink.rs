//! Generic netlink: families that are looked up by name, such as `ethtool` and `netdev`.

use netlink_sys::protocols::NETLINK_GENERIC;

use crate::attributes::{AttributeBuf, Attributes};
use crate::request::{RawMessage, Requester};
use crate::{Error, Result};

/// The controller, which resolves names to family numbers (GENL_ID_CTRL, CTRL_*).
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Length of `struct genlmsghdr`.
const HEADER_BYTES: usize = 4;

/// A generic netlink family of the namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct GenericFamily {
    requester: Requester,
    id: u16,
    name: &'static str,
}

impl GenericFamily {
    /// Opens the family `name`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when this kernel does not have it.
    pub(crate) fn open(name: &'static str) -> Result<Self> {
        let requester = Requester::open(NETLINK_GENERIC)?;
        let what = format!("look up the generic netlink family {name}");
        let attributes = AttributeBuf::default().text(FAMILY_NAME, name);
        let answers = requester.request(&what, message(CONTROLLER, GET_FAMILY, attributes), 0)?;
        let id = answers
            .first()
            .and_then(|answer| answer.payload.get(HEADER_BYTES..))
            .and_then(|bytes| Attributes::new(bytes).number(FAMILY_ID))
            .and_then(|id| u16::try_from(id).ok())
            .ok_or_else(|| Error::malformed(what, "an answer without the family's number"))?;
        Ok(Self { requester, id, name })
    }

    /// Asks for one object; returns the attributes of each answer.
    pub(crate) fn get(
        &self,
        what: &str,
        command: u8,
        attributes: AttributeBuf,
    ) -> Result<Vec<Vec<u8>>> {
        let answers = self.requester.request(what, message(self.id, command, attributes), 0)?;
        answers
            .into_iter()
            .map(|answer| {
                let bytes = answer.payload.get(HEADER_BYTES..).map(<[u8]>::to_vec);
                let reason = format!("a message of {} shorter than its header", self.name);
                bytes.ok_or_else(|| Error::malformed(what.to_owned(), reason))
            })
            .collect()
    }
}

fn message(family: u16, command: u8, attributes: AttributeBuf) -> RawMessage {
    let mut payload = vec![command, 1, 0, 0];
    payload.extend(attributes.into_bytes());
    RawMessage { kind: family, payload }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_is_not_found_when_the_kernel_has_none_of_that_name() {
        assert!(GenericFamily::open("no-such-family").unwrap_err().is_not_found());
        assert!(GenericFamily::open("nlctrl").is_ok());
    }
}
