//! [`AttachPoint`]: a device where a program is to stand.

use crate::attachment::Attachment;
use crate::pin::Pins;
use netdev::Link;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Where a program is to stand.
#[derive(Debug)]
pub(crate) struct AttachPoint {
    pub(crate) link: Link,
    attached: Option<Attachment>,
    /// Why none does.
    pub(crate) trouble: Option<String>,
}

impl AttachPoint {
    pub(crate) fn new(link: Link) -> Self {
        Self { link, attached: None, trouble: None }
    }

    /// Has the program stand there if none does. What goes wrong is said once, and tried again.
    pub(crate) fn attach(&mut self, program: BorrowedFd<'_>, pins: Option<&Arc<Pins>>) {
        if self.attached.is_some() {
            return;
        }
        let device = &self.link.name;
        match Attachment::new(program, &self.link, pins) {
            Ok(attached) => {
                tracing::info!(%device, "a program stands at the device, by {attached}");
                (self.attached, self.trouble) = (Some(attached), None);
                if let Some(others) = self.programs_before() {
                    tracing::warn!(%device, "{others} sees packets before it, and may take them away");
                }
            }
            Err(error) => {
                let text = format!("cannot attach a program to {device}: {error}");
                if self.trouble.as_ref() != Some(&text) {
                    tracing::error!("{text}; will retry");
                }
                self.trouble = Some(text);
            }
        }
    }

    /// How the program is attached, `tcx` or `clsact`; `None` while it is not.
    pub(crate) fn hook(&self) -> Option<String> {
        self.attached.as_ref().map(ToString::to_string)
    }

    /// Whose programs see packets before ours, if there are any.
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
    fn program_is_attached_later_when_it_could_not_be_at_first() {
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
            let trouble = point.trouble.clone().expect("there is no such device");
            assert!(trouble.starts_with("cannot attach a program to d0: "), "{trouble}");
            point.link = link;
            point.attach(vif, None);
        });
        assert!(point.attached.is_some() && point.trouble.is_none());
    }
}
