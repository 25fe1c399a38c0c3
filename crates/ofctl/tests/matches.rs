//! Compares compiled matches with a naive evaluation of their text on random packets.

use crate::ports;
use flow::{Field, FlowKey};
use ofctl::{FlowChange, parse_line};
use proptest::prelude::*;

/// The test that a word expresses, written independently of the code under test.
#[derive(Clone, Debug)]
struct Word {
    text: String,
    demands: Vec<(Field, u128, u128)>,
}

fn masked(
    name: &'static str,
    field: Field,
    values: std::ops::Range<u64>,
) -> impl Strategy<Value = Word> {
    let ones = field.all_ones();
    (values, prop_oneof![Just(ones), any::<u128>().prop_map(move |mask| mask & ones)]).prop_map(
        move |(value, mask)| {
            let value = u128::from(value) & ones;
            Word {
                text: format!("{name}={value:#x}/{mask:#x}"),
                demands: vec![(field, value & mask, mask)],
            }
        },
    )
}

/// Words that match one kind of packet.
fn flow() -> impl Strategy<Value = Vec<Word>> {
    let kinds =
        [("tcp", 0x800, 6), ("tcp6", 0x86dd, 6), ("udp", 0x800, 17), ("sctp6", 0x86dd, 132)];
    let kind = prop::sample::select(kinds.to_vec()).prop_map(|(name, ethertype, protocol)| Word {
        text: name.to_owned(),
        demands: vec![(Field::EthType, ethertype, 0xffff), (Field::IpProto, protocol, 0xff)],
    });
    let fragment = prop::sample::select(vec![
        ("no", 0, 3),
        ("yes", 1, 1),
        ("first", 1, 3),
        ("not_later", 0, 2),
    ])
    .prop_map(|(name, value, mask)| Word {
        text: format!("nw_frag={name}"),
        demands: vec![(Field::IpFrag, value, mask)],
    });
    let tos = (0u128..64).prop_map(|dscp| Word {
        text: format!("nw_tos={}", dscp << 2),
        demands: vec![(Field::IpDscp, dscp, 0x3f)],
    });
    let tag = (0u128..4, 0u128..8, any::<bool>()).prop_map(|(vlan, priority, both)| {
        let text = format!("dl_vlan={vlan}");
        if both {
            Word {
                text: format!("{text},dl_vlan_pcp={priority}"),
                demands: vec![(Field::VlanTci, vlan | priority << 13 | 0x1000, 0xffff)],
            }
        } else {
            Word { text, demands: vec![(Field::VlanTci, vlan | 0x1000, 0x1fff)] }
        }
    });
    let option =
        (0u128..4, prop_oneof![Just(u128::from(u64::MAX)), Just(3)]).prop_map(|(value, mask)| {
            Word {
                text: format!("tun_metadata2={value:#x}/{mask:#x}"),
                demands: vec![
                    (Field::TunMetadata2, value & mask, mask),
                    (Field::TunMetadataPresent, 4, 4),
                ],
            }
        });
    let port = (0u128..4).prop_map(|port| Word {
        text: format!("in_port={port}"),
        demands: vec![(Field::InPort, port, u32::MAX.into())],
    });
    let some = |word: BoxedStrategy<Word>| prop::option::of(word);
    (
        kind,
        some(port.boxed()),
        some(tag.boxed()),
        some(fragment.boxed()),
        some(tos.boxed()),
        some(option.boxed()),
        some(masked("tp_dst", Field::TpDst, 0..4).boxed()),
        some(masked("reg3", Field::Reg3, 0..4).boxed()),
        some(masked("xxreg2", Field::Xxreg2, 0..4).boxed()),
        some(masked("tun_id", Field::TunId, 0..4).boxed()),
    )
        .prop_map(|(kind, a, b, c, d, e, f, g, h, i)| {
            [Some(kind), a, b, c, d, e, f, g, h, i].into_iter().flatten().collect()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn compiled_match_agrees_with_its_words(
        words in flow(),
        turned in prop::collection::vec((0..Field::ALL.len(), 0u32..128), 0..3),
    ) {
        let text: Vec<_> = words.iter().map(|word| word.text.as_str()).collect();
        let line = format!("{} actions=drop", text.join(","));
        let Ok(FlowChange::Add(spec)) = parse_line(&line, &ports()) else {
            panic!("{line}: {:?}", parse_line(&line, &ports()));
        };
        // A packet that matches except for a few bits.
        let mut key = FlowKey::default();
        let demands = || words.iter().flat_map(|word| &word.demands);
        for &(field, value, _) in demands() {
            key.set(field, value);
        }
        for (field, bit) in turned {
            let field = Field::ALL[field];
            key.set(field, key.get(field) ^ 1 << (bit % u32::from(field.width())));
        }
        let naive = demands().all(|&(field, value, mask)| key.get(field) & mask == value);
        prop_assert_eq!(spec.condition.matches(&key), naive, "{} {:?}", line, key);
        // The printed form parses to the same condition.
        let Ok(FlowChange::Add(again)) = parse_line(&spec.to_string(), &ports()) else {
            panic!("{spec}");
        };
        prop_assert_eq!(again, spec);
    }
}
