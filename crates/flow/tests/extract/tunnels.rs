//! The fields of the tunnel that delivered a frame.

use crate::frame::ethernet;
use crate::{PORT, key_with};
use flow::Field as F;
use flow::{
    DatapathKey, DecapOptions, FlowKey, LogicalPorts, OuterIp, PortKey, TlvMap, TlvMapError,
    TlvOption, TunnelInfo, TunnelKey, TunnelType, extract, strip_outer, tun_flags,
};
use packet::PacketBuf;
use std::net::IpAddr;
use wire::Protocol;
use wire::tunnel::geneve::{GeneveOption, GeneveOptions, MAX_OPTIONS_LEN};

fn outer(source: &str, destination: &str) -> OuterIp {
    let parse = |text: &str| text.parse::<IpAddr>().unwrap();
    OuterIp {
        source: parse(source),
        destination: parse(destination),
        protocol: Protocol::UDP,
        traffic_class: 0xb9,
        ttl: 61,
        dont_fragment: true,
    }
}

fn key(ports: Option<(u16, u16)>) -> TunnelKey {
    let ports = ports.map(|(ingress, egress)| LogicalPorts {
        ingress: PortKey::new(ingress),
        egress: PortKey::new(egress).unwrap(),
    });
    TunnelKey { datapath: DatapathKey(0x12_3456), ports }
}

/// A key with the fields of the tunnel only.
fn tunnel_fields(tunnel: &TunnelInfo) -> FlowKey {
    let frame = PacketBuf::from_bytes(&ethernet(&[], 0x88cc).bytes);
    let mut key = extract(&frame, PORT, Some(tunnel)).unwrap();
    for field in [F::EthDst, F::EthSrc, F::EthType] {
        key.set(field, 0);
    }
    key
}

fn written(options: &[GeneveOption<'_>], check: impl FnOnce(GeneveOptions<'_>)) {
    let mut scratch = [0; MAX_OPTIONS_LEN];
    check(GeneveOptions::write(options, &mut scratch).unwrap());
}

const fn unknown(class: u16, kind: u8, data: &[u8]) -> GeneveOption<'_> {
    GeneveOption::Unknown { class, kind, data }
}

#[test]
fn outer_headers_and_key_are_in_the_key_for_every_type() {
    let flags = u128::from(tun_flags::DF | tun_flags::KEY);
    let v4 = outer("192.0.2.1", "192.0.2.2");
    let common = vec![
        (F::TunSrc, 0xc000_0201),
        (F::TunDst, 0xc000_0202),
        (F::TunTos, 0xb9),
        (F::TunTtl, 61),
        (F::TunFlags, flags),
    ];
    let option = vec![(F::TunMetadata0, 0x7fff_8001), (F::TunMetadataPresent, 1)];
    for (tunnel, ports, id, options) in [
        (TunnelType::Vxlan, None, 0x12_3456, vec![]),
        (TunnelType::Gre, None, 0x12_3456, vec![]),
        (TunnelType::Geneve, None, 0x12_3456, vec![]),
        (TunnelType::Geneve, Some((0x7fff, 0x8001)), 0x12_3456, option),
        (TunnelType::Stt, None, 0x12_3456, vec![]),
        (TunnelType::Stt, Some((0x7fff, 0x8001)), 0x007f_ff80_0112_3456, vec![]),
    ] {
        let info = TunnelInfo::new(tunnel, &v4, &key(ports));
        let fields = [common.clone(), vec![(F::TunId, id)], options].concat();
        assert_eq!(tunnel_fields(&info), key_with(&fields), "{tunnel} {ports:?}");
    }
    let v6 = OuterIp { dont_fragment: false, ..outer("2001:db8::1", "2001:db8::2") };
    let info = TunnelInfo::new(TunnelType::Vxlan, &v6, &key(None));
    let expected = key_with(&[
        (F::TunIpv6Src, 0x2001_0db8_0000_0000_0000_0000_0000_0001),
        (F::TunIpv6Dst, 0x2001_0db8_0000_0000_0000_0000_0000_0002),
        (F::TunTos, 0xb9),
        (F::TunTtl, 61),
        (F::TunFlags, tun_flags::KEY.into()),
        (F::TunId, 0x12_3456),
    ]);
    assert_eq!(tunnel_fields(&info), expected);
}

#[test]
fn tunnel_is_in_the_key_when_a_geneve_packet_is_decapped() {
    let geneve = [2, 0x40, 0x65, 0x58, 0, 0, 9, 0, 1, 2, 0x80, 1, 0, 3, 0, 4];
    let inner = ethernet(&[], 0x88cc).bytes;
    let payload = [&[0; 8][..], &geneve, &inner].concat();
    let mut ip = wire::Ipv4Repr {
        tos: 2,
        payload_len: payload.len() as u16,
        ident: 1,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset_bytes: 0,
        ttl: 60,
        protocol: Protocol::UDP,
        src: "192.0.2.1".parse().unwrap(),
        dst: "192.0.2.2".parse().unwrap(),
        options: wire::Ipv4Options::default(),
    };
    for dont_fragment in [true, false] {
        ip.dont_fragment = dont_fragment;
        let mut header = [0xa5; 20];
        ip.emit(&mut wire::Ipv4Packet::new_unchecked(&mut header[..]));
        let frame = [&ethernet(&[], 0x0800).bytes[..], &header, &payload].concat();
        let mut packet = PacketBuf::from_bytes(&frame);
        let outer = strip_outer(&mut packet).unwrap();
        packet.pull_front(8);
        let decapped = TunnelType::Geneve.decap(packet.head(), &DecapOptions::default()).unwrap();
        packet.pull_front(decapped.inner);
        let info = TunnelInfo::new(TunnelType::Geneve, &outer, &decapped.key);
        let key = extract(&packet, PORT, Some(&info)).unwrap();
        let df = if dont_fragment { tun_flags::DF } else { 0 };
        let fields = [F::TunId, F::TunMetadata0, F::TunTtl, F::TunTos, F::TunFlags, F::EthType];
        let values = [9, 0x0003_0004, 60, 2, u128::from(df | tun_flags::KEY), 0x88cc];
        assert_eq!(fields.map(|field| key.get(field)), values);
    }
}

#[test]
fn options_are_right_aligned_in_their_fields() {
    let mut map = TlvMap::default();
    map.set(1, TlvOption::new(0xfff0, 1, 8).unwrap()).unwrap();
    map.set(3, TlvOption::new(0xfff0, 2, 0).unwrap()).unwrap();
    let ports = wire::tunnel::LogicalPorts { ingress: 3, egress: 4 };
    let long = unknown(0xfff0, 1, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let options = [
        unknown(0xfff0, 9, &[0; 12]),
        long,
        GeneveOption::LogicalPorts(ports),
        unknown(0xfff0, 2, &[]),
    ];
    written(&options, |options| {
        let read = map.read(&options).unwrap();
        let values = [0, 1, 2, 3, 4].map(|slot| read.get(slot));
        assert_eq!(values, [Some(0x0003_0004), Some(0x0102_0304_0506_0708), None, Some(0), None]);
        let mut info = TunnelInfo::new(TunnelType::Geneve, &outer("::1", "::2"), &key(None));
        info.options = read;
        let key = tunnel_fields(&info);
        let fields = [
            F::TunMetadata0,
            F::TunMetadata1,
            F::TunMetadata2,
            F::TunMetadata3,
            F::TunMetadataPresent,
        ];
        let expected = [0x0003_0004, 0x0102_0304_0506_0708, 0, 0, 0b1011];
        assert_eq!(fields.map(|field| key.get(field)), expected);
        assert_eq!(TlvMap::empty().read(&options), Ok(Default::default()));
    });
}

#[test]
fn options_are_refused_when_they_are_repeated_or_of_another_length() {
    let mut map = TlvMap::empty();
    map.set(2, TlvOption::new(0xfff0, 1, 4).unwrap()).unwrap();
    for (options, expected) in [
        (vec![unknown(0xfff0, 1, &[0; 8])], "Geneve: forbidden value of length of a mapped option"),
        (vec![unknown(0xfff0, 1, &[0; 4]); 2], "Geneve: forbidden value of repeated option"),
    ] {
        written(&options, |options| {
            assert_eq!(map.read(&options).unwrap_err().to_string(), expected);
        });
    }
}

#[test]
fn map_refuses_repeated_options_and_missing_fields() {
    let option = |kind| TlvOption::new(0xfff0, kind, 4).unwrap();
    let mut map = TlvMap::default();
    assert_eq!(map.set(4, option(1)), Err(TlvMapError::NoSuchField(4)));
    assert_eq!(map.set(1, TlvOption::new(0x0102, 0x80, 8).unwrap()), Err(TlvMapError::Mapped(0)));
    assert_eq!(map, TlvMap::default());
    assert_eq!(
        (map.set(1, option(1)), map.set(1, option(2)), map.set(2, option(1))),
        (Ok(()), Ok(()), Ok(()))
    );
    assert_eq!(map.set(0, option(2)), Err(TlvMapError::Mapped(1)));
    for len in [1, 2, 3, 5, 7, 12, 124] {
        assert_eq!(TlvOption::new(0xfff0, 1, len), None);
    }
}
