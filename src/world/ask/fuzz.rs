//! Damaged requests and answers.

use super::wire::{
    ANSWER, EncodedPlaces, Kind, MemoryName, Places, Refusal, Run, TEXT, Verdict, answer, decode,
    encode, open_answer, pieces, ticket,
};
use crate::atomic::AtomicOp;
use crate::fuzz::fuzz;

const NAME: MemoryName = MemoryName {
    id: 7,
    type_hash: 9,
    size: 4,
};

#[test]
fn requests() {
    let runs = [3, 100].map(|start| Run {
        start,
        step: -1,
        count: 3,
    });
    let one = |places| -> EncodedPlaces { pieces(places, usize::MAX).remove(0) };
    let (offsets, runs) = (one(Places::Offsets(&[1, 2, 9])), one(Places::Runs(&runs)));
    let seed = |kind, places, values: &[u8]| encode(5, &NAME, kind, places, values);
    let seeds = vec![
        seed(Kind::Load, &offsets, &[]),
        seed(Kind::Load, &runs, &[]),
        seed(Kind::Store, &runs, &[1; 24]),
        seed(Kind::Apply(AtomicOp::Xor), &offsets, &[1; 12]),
        seed(Kind::Fetch(AtomicOp::Max), &runs, &[1; 24]),
        seed(Kind::CompareExchange, &offsets, &[1; 24]),
        seed(Kind::Nothing, &EncodedPlaces::default(), &[]),
    ];
    fuzz("request", seeds, |bytes| {
        assert!(ticket(bytes).is_none_or(|ticket| ticket < 1 << 63));
        let Ok(request) = decode(bytes) else {
            return;
        };
        let size = request.memory.size as usize;
        let values = request.elements * size * request.kind.values_each();
        assert_eq!(request.values.len(), values);
        assert!(
            !request.kind.answers() || request.elements <= 1 || request.elements * size <= ANSWER
        );
        let counts = request.places.runs().map(|run| run.count);
        assert_eq!(counts.sum::<u64>(), request.elements as u64);
    });
}

#[test]
fn answers() {
    let refusal = Refusal(Verdict::OutOfBounds, "no such element".to_owned());
    let seeds = vec![answer(Ok(vec![1; 16])), answer(Err(refusal))];
    fuzz("answer", seeds, |bytes| {
        match open_answer(bytes.to_vec(), 16) {
            Ok(values) => assert_eq!(values.len(), 16),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        // What an owner says is cut to a length, in the middle of a letter if need be.
        let text = String::from_utf8_lossy(bytes).into_owned();
        let said = answer(Err(Refusal(Verdict::Malformed, text)));
        assert!(said.len() <= TEXT + 1);
        assert!(open_answer(said, 0).is_err());
    });
}
