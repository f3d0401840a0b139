//! Damaged messages between the leaders of nodes.

use super::{By, Combine, Down, LIMIT, Root, Trouble, Up, by_rank, combine_parts, decode, outcome};
use crate::fuzz::fuzz;
use crate::world::node::Verdict;
use crate::world::peers::Nodes;
use crate::world::signature::{Call, Signature, mismatch};
use serde::Serialize;

fn bytes(message: &impl Serialize) -> Vec<u8> {
    ucxrun::codec::encode(message).unwrap()
}

fn up(call: Call, trouble: Option<Trouble>, parts: Vec<(usize, Vec<u8>)>) -> Up {
    Up {
        rank: 1,
        signature: Signature::new(call).count(2),
        place: " at program.rs:7".to_owned(),
        trouble,
        parts,
    }
}

#[test]
fn words_from_below() {
    // Ranks 0 and 2 are node 0, rank 1 is node 1, ranks 3 to 5 are node 2.
    let nodes = Nodes::new(&[7, 8, 7, 9, 9, 9], 0);
    let seeds = [
        up(Call::Barrier, None, vec![(1, Vec::new()), (2, Vec::new())]),
        up(
            Call::AllGather,
            None,
            vec![(1, vec![1; 2]), (2, vec![2; 6])],
        ),
        up(Call::AllReduce, None, vec![(1, vec![1; 4])]),
        up(Call::Broadcast, None, vec![(2, vec![1; 4])]),
        up(Call::Scan, Some(Trouble::mismatch("no".to_owned())), vec![]),
    ];
    let seeds = seeds.iter().map(bytes).collect();
    fuzz("up", seeds, |input| {
        let Ok(up) = decode::<Up>(input, LIMIT, 1) else {
            return;
        };
        decode::<Up>(&bytes(&up), usize::MAX, 1).unwrap();
        // What a leader makes of it: a text, or one result of the length that all expect.
        let mine = Signature::new(Call::Barrier);
        let text = mismatch((0, &mine, ""), (up.rank, &up.signature, &up.place));
        assert!(!text.is_empty());
        let add: &dyn Fn(&mut [u8], &[u8]) = &|a, b| {
            assert_eq!(a.len(), b.len());
            a.iter_mut().zip(b).for_each(|(a, b)| *a ^= b);
        };
        let all = [
            Combine::Nothing,
            Combine::Concat,
            Combine::Root(Root { rank: 1, len: 4 }),
            Combine::Reduce(add, By::Leader),
        ];
        for combine in all {
            let mut parts = vec![(0, vec![5; 4])];
            if !combine_parts(&mut parts, up.parts.clone(), &combine) {
                continue;
            }
            let data = by_rank(&nodes, parts, &combine);
            match (combine, data) {
                (Combine::Concat, Some(data)) => assert_eq!(data.len(), 12),
                (Combine::Concat, None) => {}
                (Combine::Root(_), data) => assert!(data.is_some()),
                (_, data) => assert_eq!(data.map(|data| data.len()), Some(4)),
            }
        }
    });
}

#[test]
fn words_from_above() {
    let down = |trouble, data| Down {
        place: " at program.rs:7".to_owned(),
        trouble,
        data,
    };
    let seeds = [
        down(None, vec![3; 40]),
        down(Some(Trouble::mismatch("no".to_owned())), Vec::new()),
    ];
    let seeds = seeds.iter().map(bytes).collect();
    fuzz("down", seeds, |input| {
        if let Ok(down) = decode::<Down>(input, LIMIT, 0) {
            decode::<Down>(&bytes(&down), usize::MAX, 0).unwrap();
        }
        // What a leader leaves for its members.
        for verdict in [Verdict::Late, Verdict::Mismatch, Verdict::Failed] {
            assert!(outcome(verdict, input).is_err());
        }
    });
}
