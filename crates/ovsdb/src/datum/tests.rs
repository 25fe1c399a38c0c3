use super::*;
use crate::schema::{BaseType, ColumnType};
use proptest::prelude::*;
use serde::de::DeserializeSeed;
use std::collections::{BTreeMap, BTreeSet};

fn decode(ty: &ColumnType, text: &str) -> Result<Datum, String> {
    let mut json = serde_json::Deserializer::from_str(text);
    let mut interner = Interner::default();
    let datum = DatumSeed { ty, interner: &mut interner }.deserialize(&mut json);
    datum.and_then(|datum| json.end().map(|()| datum)).map_err(|error| error.to_string())
}

fn set_of(kind: AtomKind, max: u32) -> ColumnType {
    ColumnType { min: 0, max, ..ColumnType::scalar(kind) }
}

fn map_of(key: AtomKind, value: AtomKind) -> ColumnType {
    ColumnType { value: Some(BaseType::new(value)), ..set_of(key, u32::MAX) }
}

#[test]
fn values_are_decoded_when_they_have_the_type() {
    let uuid: Uuid = "e21d3124-b9ce-4fa5-9424-05b58e72a7bc".parse().unwrap();
    let text = format!("[\"uuid\",\"{uuid}\"]");
    for (ty, text, expected) in [
        (ColumnType::scalar(AtomKind::Integer), "-5", Datum::from(-5)),
        (ColumnType::scalar(AtomKind::Integer), "[\"set\",[7]]", Datum::from(7)),
        (ColumnType::scalar(AtomKind::Real), "2", Datum::from(2.0)),
        (ColumnType::scalar(AtomKind::Real), "1e3", Datum::from(1000.0)),
        (ColumnType::scalar(AtomKind::String), "\"a\\u00e4\\n\"", Datum::from("aä\n")),
        (ColumnType::scalar(AtomKind::Boolean), "true", Datum::from(true)),
        (ColumnType::scalar(AtomKind::Uuid), &text, Datum::from(uuid)),
        (set_of(AtomKind::Integer, 1), "3", Datum::from(Some(3))),
        (set_of(AtomKind::Integer, 1), "[\"set\",[]]", Datum::empty_set()),
        (set_of(AtomKind::Uuid, 9), &text, Datum::from(vec![uuid])),
        (set_of(AtomKind::Integer, 9), "[\"set\",[3,1,2,1]]", Datum::from(vec![1, 2, 3])),
        (
            map_of(AtomKind::String, AtomKind::Integer),
            "[\"map\",[[\"b\",2],[\"a\",1],[\"a\",3]]]",
            BTreeMap::from([("a", 3), ("b", 2)]).into(),
        ),
    ] {
        assert_eq!(decode(&ty, text), Ok(expected.clone()), "{text}");
        let json = expected.to_json().to_string();
        assert_eq!(decode(&ty, &json), Ok(expected), "{json}");
    }
}

#[test]
fn values_are_refused_when_they_have_another_type() {
    let integer = ColumnType::scalar(AtomKind::Integer);
    let optional = set_of(AtomKind::Integer, 1);
    let set = set_of(AtomKind::Integer, 9);
    let map = map_of(AtomKind::String, AtomKind::Integer);
    for (ty, text, expected) in [
        (&integer, "\"a\"", "expected an integer, not \"a\""),
        (&integer, "1.5", "expected an integer, not 1.5"),
        (&integer, "9223372036854775808", "exceeds 64 bits"),
        (&integer, "[\"set\",[]]", "expected an integer, not nothing"),
        (&integer, "[\"set\",[1,2]]", "expected an integer, not a set of 2"),
        (&integer, "null", "expected an integer"),
        (&integer, "{}", "expected an integer"),
        (&integer, "[]", "not an empty array"),
        (&integer, "[\"uuid\",\"x\"]", "expected a UUID"),
        (&optional, "[\"set\",[1,2]]", "not a set of 2"),
        (&set, "[\"set\",[1,\"a\"]]", "expected a value of type integer, not \"a\""),
        (&set, "[\"set\",[[\"set\",[]]]]", "itself a set or map"),
        (&set, "[\"set\"]", "nothing follows \"set\""),
        (&set, "[\"set\",[1],2]", "more elements"),
        (&set, "[\"map\",[]]", "not a map"),
        (&set, "[\"list\",[]]", "expected \"uuid\", \"set\" or \"map\""),
        (&map, "[\"set\",[]]", "not a set"),
        (&map, "1", "expected a map of strings to integers, not 1"),
        (&map, "[\"map\",[[\"a\"]]]", "needs a key and a value"),
        (&map, "[\"map\",[[\"a\",1,2]]]", "more elements"),
    ] {
        let error = decode(ty, text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn rust_types_are_accepted_when_the_column_fits() {
    let accepts = |expected: Expected, ty: &ColumnType| expected.accepts(ty);
    let optional = set_of(AtomKind::Integer, 1);
    assert!(accepts(i64::EXPECTED, &ColumnType::scalar(AtomKind::Integer)));
    assert!(!accepts(i64::EXPECTED, &optional));
    assert!(!accepts(bool::EXPECTED, &ColumnType::scalar(AtomKind::Integer)));
    assert!(accepts(Option::<i64>::EXPECTED, &optional));
    assert!(!accepts(Option::<i64>::EXPECTED, &set_of(AtomKind::Integer, 2)));
    assert!(accepts(Vec::<i64>::EXPECTED, &optional));
    let map = map_of(AtomKind::String, AtomKind::Integer);
    assert!(accepts(BTreeMap::<String, i64>::EXPECTED, &map));
    assert!(!accepts(BTreeMap::<String, bool>::EXPECTED, &map));
    assert!(!accepts(Vec::<String>::EXPECTED, &map));
    assert_eq!(Option::<i64>::from_datum(&Datum::empty_set()), Some(None));
    assert_eq!(i64::from_datum(&Datum::empty_set()), None);
    assert_eq!(Vec::<i64>::from_datum(&vec![2, 1].into()), Some(vec![1, 2]));
}

#[test]
fn values_stay_small_because_a_replica_has_millions() {
    assert_eq!((size_of::<Atom>(), size_of::<Datum>()), (24, 24));
}

#[test]
fn map_value_is_found_by_string_key() {
    let map = Datum::from(BTreeMap::from([("a", 1), ("b", 2)]));
    assert_eq!(map.get("b"), Some(&Atom::Integer(2)));
    assert_eq!(map.get("c"), None);
    assert_eq!(Datum::from(BTreeMap::from([(1, 1)])).get("c"), None);
}

proptest! {
    #[test]
    fn set_is_the_new_one_when_its_difference_is_applied(
        old: BTreeSet<i8>, new: BTreeSet<i8>,
    ) {
        let ty = set_of(AtomKind::Integer, u32::MAX);
        let datum = |set: &BTreeSet<i8>| Datum::set(set.iter().map(|&n| i64::from(n).into()));
        let difference = &old ^ &new;
        prop_assert_eq!(datum(&old).apply_difference(datum(&difference), &ty), datum(&new));
    }

    #[test]
    fn map_is_the_new_one_when_its_difference_is_applied(
        old: BTreeMap<i8, bool>, new: BTreeMap<i8, bool>,
    ) {
        let ty = map_of(AtomKind::Integer, AtomKind::Boolean);
        let datum = |map: &BTreeMap<i8, bool>| {
            Datum::map(map.iter().map(|(&key, &value)| (i64::from(key).into(), value.into())))
        };
        let mut difference = new.clone();
        difference.retain(|key, value| old.get(key) != Some(value));
        difference.extend(old.iter().filter(|(key, _)| !new.contains_key(*key)));
        prop_assert_eq!(datum(&old).apply_difference(datum(&difference), &ty), datum(&new));
    }
}
