//! The bits of a packet that flows write.

use crate::flow::Flow;
use crate::op::{LearnedOp, Op};
use ::flow::{Field, FlowMask, Subfield};
use std::sync::Arc;

/// The fields that keep their values from the received packet unless a flow writes them. The switch
/// also writes tags, tunnel headers and registers on its own.
const PACKET_FIELDS: [Field; 11] = [
    Field::EthSrc,
    Field::EthDst,
    Field::EthType,
    Field::IpProto,
    Field::IpFrag,
    Field::Ip4Src,
    Field::Ip4Dst,
    Field::Ip6Src,
    Field::Ip6Dst,
    Field::TpSrc,
    Field::TpDst,
];

/// The bits of [`PACKET_FIELDS`].
pub(super) fn packet_bits() -> FlowMask {
    let mut bits = FlowMask::default();
    PACKET_FIELDS.into_iter().for_each(|field| bits.add(field));
    bits
}

/// The bits that the steps of these flows may write, except registers that a pipeline writes on its
/// own. `None` if a step may write any bit.
pub(super) fn bits_written_by(flows: &[Arc<Flow>]) -> Option<FlowMask> {
    let mut written = FlowMask::default();
    flows.iter().try_for_each(|flow| add_written(&mut written, &flow.ops))?;
    Some(written)
}

fn add_written(written: &mut FlowMask, ops: &[Op]) -> Option<()> {
    for op in ops {
        let mut add = |bits: &Subfield| written.add_bits(bits.field(), bits.field_mask());
        match op {
            Op::Load { to, .. }
            | Op::Move { to, .. }
            | Op::Pop(to)
            | Op::PortSecurity { to, .. }
            | Op::CheckLength { to, .. }
            | Op::Select { to, .. } => add(to),
            Op::Exchange(a, b) => {
                add(a);
                add(b);
            }
            Op::DecTtl => add(&Field::IpTtl.into()),
            Op::Learned(op) => match &**op {
                LearnedOp::GetMacBinding { .. } => add(&Field::EthDst.into()),
                LearnedOp::LookupMacBinding { to, .. }
                | LearnedOp::GetFdb { to, .. }
                | LearnedOp::LookupFdb { to, .. } => add(to),
                LearnedOp::PutMacBinding { .. }
                | LearnedOp::PutFdb { .. }
                | LearnedOp::UseMacBinding => {}
                LearnedOp::CheckAffinity { .. }
                | LearnedOp::LearnAffinity(_)
                | LearnedOp::CheckNextHop { .. }
                | LearnedOp::LearnNextHop => return None,
            },
            Op::Clone(ops) => add_written(written, ops)?,
            Op::Push(_)
            | Op::Next(_)
            | Op::Output
            | Op::OutputPort(_)
            | Op::OutputField(_)
            | Op::OutputInPort
            | Op::Flood
            | Op::Normal
            | Op::Controller
            | Op::Log(_)
            | Op::Meter { .. }
            | Op::NamedMeter(_)
            | Op::SetQueue(_)
            | Op::Drop => {}
            Op::Resubmit { .. }
            | Op::PushVlan { .. }
            | Op::PopVlan
            | Op::SetVlan { .. }
            | Op::Reply { .. }
            | Op::Reject(_)
            | Op::SetIcmpMtu(_)
            | Op::Serve { .. }
            | Op::DnsLookup(_)
            | Op::Ct(_)
            | Op::CtBalance(_)
            | Op::CtOriginal { .. }
            | Op::CtClear
            | Op::Unsupported(_) => return None,
        }
    }
    Some(())
}
