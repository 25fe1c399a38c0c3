//! [`AttachPoint`]: a device that a program is to be attached to.

use crate::attachment::Attachment;
use crate::pin::Pins;
use netdev::Link;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A device, and the program's attachment to it if that has succeeded.
#[derive(Debug)]
pub(crate) struct AttachPoint {
    pub(crate) link: Link,
    attached: Option<Attachment>,
    /// Why the program is not attached.
    pub(crate) attach_error: Option<String>,
}

impl AttachPoint {
    pub(crate) fn new(link: Link) -> Self {
        Self { link, attached: None, attach_error: None }
    }

    /// Attaches the program if it is not attached. An error is logged once, and the next call tries
    /// again.
    pub(crate) fn attach(&mut self, program: BorrowedFd<'_>, pins: Option<&Arc<Pins>>) {
        if self.attached.is_some() {
            return;
        }
        let device = &self.link.name;
        match Attachment::new(program, &self.link, pins) {
            Ok(attached) => {
                messages::log!(PROGRAM_ATTACHED, %device, "attached a program by {attached}");
                (self.attached, self.attach_error) = (Some(attached), None);
                if let Some(others) = self.programs_before() {
                    messages::log!(
                        PROGRAM_BEHIND_OTHERS,
                        %device,
                        "{others} runs before the program and may consume its packets"
                    );
                }
            }
            Err(error) => {
                let text = format!("cannot attach a program to {device}: {error}");
                if self.attach_error.as_ref() != Some(&text) {
                    messages::log!(PROGRAM_NOT_ATTACHED, "{text}; will retry");
                }
                self.attach_error = Some(text);
            }
        }
    }

    /// How the program is attached, `tcx` or `clsact`; `None` if it is not.
    pub(crate) fn hook(&self) -> Option<String> {
        self.attached.as_ref().map(ToString::to_string)
    }

    /// Programs of others that run before this one, if there are any.
    pub(crate) fn programs_before(&self) -> Option<String> {
        let others = self.attached.as_ref()?.programs_before(self.link.index).ok()?;
        (!others.is_empty()).then(|| others.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{MapSizes, load};
    use flow::EntropySeed;
    use netdev::{Ifindex, LinkKind, LinkSpec};
    use testkit::host::TestHost;

    #[test]
    fn program_is_attached_on_retry_after_an_error() {
        testkit::require_root!();
        let host = TestHost::new("retry");
        let netlink = host.netlink();
        let index = netlink.create(&LinkSpec::new("d0"), &LinkKind::Bridge).expect("a device");
        let link = netlink.link_by_index(index).expect("it is there");
        let loaded = load(MapSizes::new(16, 16), &EntropySeed::random()).expect("programs");
        let vif = loaded.program("weft_vif").expect("a program");
        let mut point = AttachPoint::new(Link { index: Ifindex(9999), ..link.clone() });
        host.run(|| {
            point.attach(vif, None);
            let attach_error = point.attach_error.clone().expect("there is no such device");
            assert!(attach_error.starts_with("cannot attach a program to d0: "), "{attach_error}");
            point.link = link;
            point.attach(vif, None);
        });
        assert!(point.attached.is_some() && point.attach_error.is_none());
    }
}
