//! Collectives on serde types that combine, and that give one object to each rank: results, and
//! calls that do not go together.

mod model;

use model::{collectives, everywhere};
use pgas::testing::on_ranks;
use pgas::{Error, ErrorKind, Op, World};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Encoded objects that go with the meeting, and such that go over the stage.
const LENS: [usize; 4] = [0, 3, 700, 70_000];

fn on_each_root(world: &World) -> pgas::Result<()> {
    for root in 0..world.size() {
        for len in LENS {
            collectives::objects(world, root, len)?;
        }
    }
    // Nodes' ranks that are no neighbours.
    let team = world.split(0, (world.rank() * 3 % 5) as i64)?;
    collectives::objects(&team, 0, 3)
}

#[test]
fn objects_on_1_to_4_ranks() {
    for ranks in 1..=4 {
        everywhere(ranks, on_each_root);
    }
}

#[test]
fn objects_on_5_to_7_ranks() {
    for ranks in 5..=7 {
        everywhere(ranks, on_each_root);
    }
}

fn join(a: String, b: String) -> String {
    a + &b
}

fn join_backwards(a: String, b: String) -> String {
    b + &a
}

#[track_caller]
fn mismatch<T>(result: pgas::Result<T>, words: [&str; 2]) {
    let error = failure(result);
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[track_caller]
fn failure<T>(result: pgas::Result<T>) -> Error {
    match result {
        Ok(_) => panic!("no error"),
        Err(error) => error,
    }
}

#[test]
fn objects_that_do_not_go_together() {
    everywhere(3, |world| {
        let (me, text) = (world.rank(), "x".to_owned());
        let first = me == 0;
        mismatch(
            match first {
                true => world.reduce_obj(1, &text, join).map(drop),
                false => world.gather_obj(1, &text).map(drop),
            },
            ["reduce of an object to rank 1", "gather to rank 1"],
        );
        mismatch(
            match first {
                true => world.all_reduce_obj(&1_u32, |a, b| a + b),
                false => world.all_reduce(1_u32, |a, b| a + b),
            },
            ["all_reduce of an object", "all_reduce of 1 elements"],
        );
        mismatch(
            match first {
                true => world.scan_obj(&text, join).map(Some),
                false => world.exscan_obj(&text, join),
            },
            ["called scan of an object", "called exscan of an object"],
        );
        mismatch(
            world.reduce_obj(usize::from(first), &text, join),
            ["to rank 0", "to rank 1"],
        );
        let objects = vec![text.clone(); if first { 2 } else { 3 }];
        mismatch(
            world.all_to_all_obj(&objects),
            ["all_to_all of 2 objects", "all_to_all of 3 objects"],
        );
        mismatch(
            world.reduce_scatter_obj(&objects, join),
            ["reduce_scatter of 2 objects", "reduce_scatter of 3 objects"],
        );
        let texts = vec![text.clone(); 3];
        mismatch(
            match first {
                true => world.all_to_all_obj(&texts),
                false => world.all_to_all_obj(&[1, 2, 3]).map(|_| Vec::new()),
            },
            ["all_to_all of 3 objects", "element type"],
        );
        mismatch(
            match first {
                true => world.all_to_all_obj(&[1_u8; 3]),
                false => world.all_to_all(&[1_u8; 3]),
            },
            ["called all_to_all of 3 objects", "called all_to_all at"],
        );
        // As many on all, but not one for each.
        for objects in [&texts[..2], &[]] {
            let wrong = world.all_to_all_obj(objects).map(drop);
            assert_eq!(failure(wrong).kind(), ErrorKind::InvalidArgument);
            let wrong = world.reduce_scatter_obj(objects, join).map(drop);
            assert_eq!(failure(wrong).kind(), ErrorKind::InvalidArgument);
        }
        let wrong = world.reduce_obj(3, &text, join).map(drop);
        assert_eq!(failure(wrong).kind(), ErrorKind::InvalidArgument);
        // And all goes on.
        assert_eq!(world.all_reduce_obj(&text, join)?, "xxx");
        Ok(())
    });
}

fn larger(a: u64, b: u64) -> u64 {
    a.max(b)
}

fn smaller(a: u64, b: u64) -> u64 {
    a.min(b)
}

#[test]
fn functions_that_differ() {
    everywhere(3, |world| {
        let words = ["with another operator", "rank"];
        for odd in 0..3 {
            let odd = world.rank() == odd;
            let mut many = vec![1; 5000];
            mismatch(
                match odd {
                    true => world.all_reduce(1, larger),
                    false => world.all_reduce(1, smaller),
                },
                words,
            );
            mismatch(
                match odd {
                    true => world.all_reduce_slice(&mut many, larger),
                    false => world.all_reduce_slice(&mut many, smaller),
                },
                words,
            );
            mismatch(
                match odd {
                    true => world.scan(1, larger),
                    false => world.scan(1, smaller),
                },
                words,
            );
            mismatch(
                match odd {
                    true => world.reduce(1, 1, larger),
                    false => world.reduce(1, 1, |a: u64, b: u64| a.max(b)),
                },
                words,
            );
            mismatch(
                match odd {
                    true => world.all_reduce(1, larger),
                    false => world.all_reduce(1, Op::Max),
                },
                words,
            );
            let text = "x".to_owned();
            mismatch(
                match odd {
                    true => world.all_reduce_obj(&text, join),
                    false => world.all_reduce_obj(&text, join_backwards),
                },
                words,
            );
        }
        // One function, from two places, is one function.
        let largest = match world.rank() {
            0 => world.all_reduce(7, larger)?,
            _ => world.all_reduce(8, larger)?,
        };
        assert_eq!(largest, 8);
        Ok(())
    });
}

/// What cannot be encoded (-1), or what of it cannot be decoded (-2).
#[derive(Debug, Clone)]
struct Stubborn(i8);

impl Serialize for Stubborn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            -1 => Err(serde::ser::Error::custom("will not go")),
            value => serializer.serialize_i8(value),
        }
    }
}

impl<'de> Deserialize<'de> for Stubborn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match i8::deserialize(deserializer)? {
            -2 => Err(serde::de::Error::custom("will not come")),
            value => Ok(Self(value)),
        }
    }
}

#[test]
fn objects_that_cannot_be_encoded_or_decoded() {
    let later = |_: Stubborn, b: Stubborn| b;
    on_ranks(3, |world| {
        let me = world.rank();
        // Rank 1's cannot be encoded.
        let bad = Stubborn(if me == 1 { -1 } else { 1 });
        let row = [Stubborn(1), bad.clone(), Stubborn(1)];
        for result in [
            world.all_reduce_obj(&bad, later).map(drop),
            world.reduce_obj(0, &bad, later).map(drop),
            world.scan_obj(&bad, later).map(drop),
            world.exscan_obj(&bad, later).map(drop),
            world.all_to_all_obj(&row).map(drop),
            world.reduce_scatter_obj(&row, later).map(drop),
        ] {
            let error = failure(result);
            let kind = match me {
                1 => ErrorKind::InvalidArgument,
                _ => ErrorKind::Mismatch,
            };
            assert_eq!(error.kind(), kind, "{error}");
        }
        // Rank 1's cannot be decoded: an error of those who look at it, the same one.
        let bad = Stubborn(if me == 1 { -2 } else { 1 });
        let row = [Stubborn(1), Stubborn(1), bad.clone()];
        for (call, meets, result) in [
            (
                "all_reduce",
                true,
                world.all_reduce_obj(&bad, later).map(drop),
            ),
            (
                "reduce",
                me == 2,
                world.reduce_obj(2, &bad, later).map(drop),
            ),
            ("scan", me >= 1, world.scan_obj(&bad, later).map(drop)),
            ("exscan", me == 2, world.exscan_obj(&bad, later).map(drop)),
            ("all_to_all", me == 2, world.all_to_all_obj(&row).map(drop)),
            (
                "reduce_scatter",
                me == 2,
                world.reduce_scatter_obj(&row, later).map(drop),
            ),
        ] {
            if !meets {
                result?;
                continue;
            }
            let error = failure(result);
            let seen = (error.kind(), error.peer());
            assert_eq!(seen, (ErrorKind::InvalidArgument, Some(1)), "{error}");
            let text = error.to_string();
            let start = format!("{call}: object of rank 1: ");
            assert!(
                text.starts_with(&start) && text.contains("will not come"),
                "{text}"
            );
        }
        assert_eq!(world.all_reduce(1, Op::Sum)?, 3);
        Ok(())
    });
}
