//! Compares the megaflows of a switch with separate translations of the packets that they match.

use super::UNREPORTED_FIELDS;
use super::compare;
use super::reference::{ExpectedUpcall, Frame};
use datapath::megaflow::{Megaflow, MegaflowId};
use datapath::upcall::Upcall;
use flow::{Action, FlowKey, FlowMask, PortNo};
use pipeline::{Program, retranslate, translate};
use std::collections::HashSet;

/// A packet and the result of translating it separately.
pub(super) struct Translated {
    pub upcall: ExpectedUpcall,
    pub actions: Vec<Action>,
    mask: FlowMask,
}

impl Translated {
    pub fn new(program: &Program, upcall: ExpectedUpcall) -> Self {
        let translation = translate(program, &upcall.key, &(), &mut ());
        Self { upcall, actions: translation.actions, mask: translation.mask.of_packet() }
    }

    /// True when one of the megaflows matches the packet.
    fn is_served(&self, megaflows: &[Megaflow]) -> bool {
        megaflows.iter().any(|megaflow| serves(megaflow, &self.upcall.key))
    }

    fn raised(&self) -> (FlowKey, Frame) {
        compare::raised(&self.upcall.key, &self.upcall.packet)
    }
}

/// True when the megaflow matches the key. Fields that can have different values in the suite and
/// in the provider are ignored.
fn serves(megaflow: &Megaflow, key: &FlowKey) -> bool {
    let mut mask = megaflow.condition.mask().clone();
    UNREPORTED_FIELDS.into_iter().for_each(|field| mask.set(field, 0));
    mask.agree(megaflow.condition.key(), key)
}

/// Checks that each megaflow is correct for every packet that it matches: translating the packet
/// separately gives the same actions, and depends only on bits of the mask.
pub(super) fn are_correct(
    megaflows: &[Megaflow],
    packets: &[Translated],
    program: &Program,
) -> Result<(), String> {
    for Translated { upcall: ExpectedUpcall { key, .. }, actions, mask } in packets {
        for megaflow in megaflows.iter().filter(|megaflow| serves(megaflow, key)) {
            if *megaflow.actions != **actions {
                return Err(format!("{megaflow:?}\nserves {key}\nwhich is for {actions:?}"));
            }
            let have = megaflow.condition.mask();
            if have.covers(mask) {
                continue;
            }
            // A rule can fail to match two packets because of different bits, although one megaflow
            // is correct for both.
            let translation = retranslate(program, key, have.clone(), &(), &mut ());
            let need = translation.mask.of_packet();
            if !have.covers(&need) && !has_same_actions_without(&need, (megaflow, key), program) {
                return Err(missing_bits_error(megaflow, &need, key));
            }
        }
    }
    Ok(())
}

/// True if the program gives all tested packets of a megaflow the same actions, although a
/// translation of `key` reads bits outside of the megaflow's mask. This can be the case when a
/// megaflow was kept across a change of the program.
fn has_same_actions_without(need: &FlowMask, of: (&Megaflow, &FlowKey), program: &Program) -> bool {
    let (megaflow, key) = of;
    (0..SIBLINGS).all(|number| {
        let mut sibling = key.clone();
        let masks = need.words().iter().zip(megaflow.condition.mask().words());
        for (word, (need, have)) in sibling.words_mut().iter_mut().zip(masks) {
            let flipped = !0_u64 ^ 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number);
            *word ^= flipped & need & !have;
        }
        *translate(program, &sibling, &(), &mut ()).actions == *megaflow.actions
    })
}

/// The number of other packets that are tested for a megaflow.
const SIBLINGS: u64 = 64;

/// Checks that each new megaflow, which is not in `had`, was created for one of the packets that it
/// matches: its mask has all bits that the translation of that packet read.
pub(super) fn were_made_for(
    packets: &[Translated],
    megaflows: &[Megaflow],
    had: &[Megaflow],
) -> Result<(), String> {
    let known: HashSet<MegaflowId> = had.iter().map(|megaflow| megaflow.id).collect();
    for megaflow in megaflows.iter().filter(|megaflow| !known.contains(&megaflow.id)) {
        let have = megaflow.condition.mask();
        let mut served =
            packets.iter().filter(|packet| serves(megaflow, &packet.upcall.key)).peekable();
        let Some(first) = served.peek().copied() else {
            return Err(format!("{megaflow:?}\nserves none of the packets"));
        };
        if !served.any(|packet| have.covers(&packet.mask)) {
            return Err(missing_bits_error(megaflow, &first.mask, &first.upcall.key));
        }
    }
    Ok(())
}

fn missing_bits_error(megaflow: &Megaflow, need: &FlowMask, key: &FlowKey) -> String {
    let mut lacking = need.clone();
    let words = lacking.words_mut().iter_mut().zip(megaflow.condition.mask().words());
    words.for_each(|(need, have)| *need &= !have);
    format!("the mask of\n {megaflow:?}\nlacks {lacking:?} of {key}")
}

/// Checks that each of the packets matches a megaflow.
pub(super) fn serve<'a>(
    megaflows: &[Megaflow],
    packets: impl IntoIterator<Item = &'a Translated>,
) -> Result<(), String> {
    match packets.into_iter().find(|packet| !packet.is_served(megaflows)) {
        None => Ok(()),
        Some(Translated { upcall: ExpectedUpcall { port, key, .. }, mask, .. }) => {
            Err(format!("port {port}: no megaflow serves {key}\nof which was read {mask:?}"))
        }
    }
}

/// Checks that no two upcalls are for the same packet; returns the packets without upcall.
pub(super) fn not_among<'a>(
    misses: &[Upcall],
    packets: &'a [Translated],
) -> Result<Vec<&'a Translated>, String> {
    let mut open: Vec<(PortNo, (FlowKey, Frame), &Translated)> =
        packets.iter().map(|packet| (packet.upcall.port, packet.raised(), packet)).collect();
    for miss in misses {
        let (port, wanted) = (miss.port, compare::raised(&miss.key, &miss.packet));
        match open.iter().position(|(at, raised, _)| (*at, raised) == (port, &wanted)) {
            Some(at) => drop(open.swap_remove(at)),
            None => {
                let (key, frame) = wanted;
                return Err(format!("port {port}: upcall {key}\n {}", compare::show(&frame)));
            }
        }
    }
    Ok(open.into_iter().map(|(_, _, packet)| packet).collect())
}
