use super::*;

#[test]
fn fields_do_not_overlap_and_stay_in_their_words() {
    let mut taken = [0u64; WORDS];
    for &field in Field::ALL {
        let word = field.word();
        if field.width() == 128 {
            assert_eq!(taken[word] | taken[word + 1], 0, "{field}");
            taken[word] = u64::MAX;
            taken[word + 1] = u64::MAX;
        } else {
            assert!(field.shift() + field.width() <= 64, "{field}");
            let bits = (field.all_ones() as u64) << field.shift();
            assert_eq!(taken[word] & bits, 0, "{field}");
            taken[word] |= bits;
        }
    }
    assert!(taken.iter().all(|&word| word != 0));
}

#[test]
fn fields_do_not_cross_stages() {
    assert_eq!(
        STAGES.iter().flat_map(Clone::clone).collect::<Vec<_>>(),
        (0..WORDS).collect::<Vec<_>>()
    );
    for &field in Field::ALL {
        let last = field.word() + usize::from(field.width() == 128);
        assert!(STAGES.iter().any(|s| s.contains(&field.word()) && s.contains(&last)), "{field}");
    }
}

#[test]
fn aliases_cover_the_registers_they_name() {
    for n in 0..8 {
        let (xreg, low) = (Field::xreg(n).unwrap(), Field::reg(2 * n + 1).unwrap());
        assert_eq!((xreg.word(), xreg.name()), (low.word(), format!("xreg{n}").as_str()));
    }
    for n in 0..4 {
        let (xxreg, high) = (Field::xxreg(n).unwrap(), Field::reg(4 * n).unwrap());
        assert_eq!((xxreg.word(), xxreg.name()), (high.word(), format!("xxreg{n}").as_str()));
    }
    assert_eq!((Field::reg(16), Field::xreg(8), Field::xxreg(4)), (None, None, None));
    assert_eq!(Field::reg(15), Some(Field::Reg15));
}

#[test]
fn subfield_is_refused_beyond_its_field() {
    assert_eq!(Subfield::new(Field::IpEcn, 1, 2), None);
    assert_eq!(Subfield::new(Field::Reg0, 0, 0), None);
    assert_eq!(Subfield::new(Field::Ip6Src, 127, 1).map(Subfield::field_mask), Some(1 << 127));
    assert_eq!(Subfield::bit(Field::Reg3, 4).unwrap().to_string(), "reg3[4]");
}

#[test]
fn rows_are_in_the_order_of_the_key() {
    let places: Vec<_> = Field::ALL.iter().map(|f| (f.word(), 64 - i32::from(f.shift()))).collect();
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn fields_of_one_word_have_one_place_in_the_kernels_key() {
    for &field in Field::ALL {
        let (place, word) = (field.spec().kernel, KERNEL_WORDS[field.word()]);
        assert!(place == word || field == Field::PktMark, "{field}: {place:?} and {word:?}");
        assert_eq!(place == KernelWord::Register, field.is_register(), "{field}");
    }
}

#[test]
fn names_have_bits_that_their_field_has() {
    for &field in Field::ALL.iter().chain(Field::ALIASES) {
        let spec = field.spec();
        assert_eq!(Field::from_name(spec.name), Some(field));
        for symbol in spec.ovn {
            let width = if symbol.width == 0 { spec.width } else { symbol.width };
            assert!(symbol.first + width <= spec.width, "{}", symbol.name);
            let own = spec.prerequisite.requirement().ovn;
            assert!(symbol.prerequisite.or(own).is_some(), "{} needs an own one", symbol.name);
        }
        for name in spec.ofctl {
            let width = if name.width == 0 { spec.width } else { name.width };
            let bits = width - name.missing_low_bits;
            assert!(name.first + bits <= spec.width, "{}", name.name);
        }
    }
}
