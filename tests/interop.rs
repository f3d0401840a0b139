//! Types and functions of other crates with arrays, as a user would have them.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

use bytemuck::{NoUninit, Pod, Zeroable};
use half::{bf16, f16};
use num_complex::Complex;
use pgas::testing::on_ranks;
use pgas::{GlobalArray, Op};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[test]
fn complex_numbers() {
    on_ranks(3, |world| {
        let value = |k: usize| Complex::new(k as f64, -1.0 / (k + 1) as f64);
        let mut array = GlobalArray::<Complex<f64>>::from_fn(world, 100, value)?;
        assert_eq!(array.get(99)?, value(99));
        array.map_inplace(|z| z * Complex::i())?;
        let sum = array.reduce_in_order(|a: Complex<f64>, b| a + b)?;
        let right = (1..100).fold(value(0) * Complex::i(), |sum, k| {
            sum + value(k) * Complex::i()
        });
        assert_eq!(sum, Some(right));
        let lengths = array.map(|z| z.norm())?;
        assert_eq!(lengths.get(3)?, value(3).norm());
        let whole = world.all_reduce(Complex::new(1.0_f32, 2.0), |a: Complex<f32>, b| a + b)?;
        assert_eq!(whole, Complex::new(3.0, 6.0));
        Ok(())
    });
}

#[test]
fn half_precision() {
    on_ranks(2, |world| {
        let value = |k: usize| f16::from_f64(k as f64 / 4.0);
        let mut array = GlobalArray::<f16>::from_fn(world, 50, value)?;
        assert_eq!(array.max()?, Some(value(49)));
        assert_eq!(array.sum()?, f16::from_f64(49.0 * 50.0 / 8.0));
        array.sort_by(|a, b| b.total_cmp(a))?;
        assert_eq!(array.get(0)?, value(49));
        let nan = world.all_reduce(
            if world.rank() == 1 {
                bf16::NAN
            } else {
                bf16::ONE
            },
            Op::Min,
        )?;
        assert!(nan.is_nan());
        Ok(())
    });
}

/// A particle, as a program has it.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Particle {
    place: [f64; 3],
    mass: f64,
    kind: u32,
    flags: u32,
}

/// Not all bytes are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, NoUninit, bytemuck::CheckedBitPattern)]
#[repr(u8)]
enum State {
    Off = 0,
    On = 1,
    Broken = 7,
}

#[test]
fn structs_and_enums_of_users() {
    on_ranks(3, |world| {
        let particle = |k: usize| Particle {
            place: [k as f64, 0.5, -1.0],
            mass: 1.0 / (k + 1) as f64,
            kind: (k % 3) as u32,
            flags: 0,
        };
        let mut array = GlobalArray::<Particle>::from_fn(world, 90, particle)?;
        let of_kind = array.filter(|particle| particle.kind == 1)?;
        assert_eq!((of_kind.len(), of_kind.get(29)?), (30, particle(88)));
        array.sort_by(|a, b| a.mass.total_cmp(&b.mass))?;
        assert_eq!(array.get(0)?, particle(89));
        let states = GlobalArray::<State>::from_fn(world, 10, |k| match k {
            3 => State::Broken,
            _ if k % 2 == 0 => State::On,
            _ => State::Off,
        })?;
        assert_eq!((states.get(3)?, states.get(4)?), (State::Broken, State::On));
        world.barrier()
    });
}

#[test]
fn views_of_ndarray() {
    on_ranks(2, |world| {
        let mut array = GlobalArray::<f64, 2>::from_fn(world, [8, 6], |[i, j]| (i * 6 + j) as f64)?;
        let mut view = array.local()?;
        let mut mine = view.array_mut();
        mine.mapv_inplace(|x| x * 2.0);
        let rows = mine.sum_axis(ndarray::Axis(1));
        view.close()?;
        let section = array.get_section((.., 1..3))?;
        assert_eq!(section.dim(), (8, 2));
        assert_eq!(section[[7, 1]], 88.0);
        let first = array.owned(world.rank()).ranges().unwrap()[0].start;
        assert_eq!(
            rows[0],
            (0..6).map(|j| (first * 6 + j) as f64 * 2.0).sum::<f64>()
        );
        let dot = section.t().dot(&section);
        assert_eq!(dot.dim(), (2, 2));
        world.barrier()
    });
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Settings {
    name: String,
    steps: Option<u32>,
    limits: BTreeMap<String, f64>,
}

#[test]
fn objects_of_serde() {
    on_ranks(2, |world| {
        let settings = |rank: usize| Settings {
            name: format!("rank {rank}"),
            steps: (rank > 0).then_some(7),
            limits: BTreeMap::from([("tolerance".into(), 1e-6)]),
        };
        let mine = settings(world.rank());
        let all = world.all_gather_obj(&mine)?;
        assert_eq!(all, [settings(0), settings(1)]);
        let first = world.broadcast_obj(0, Some(&mine))?;
        assert_eq!(first, settings(0));
        if world.rank() == 0 {
            world.send_obj(1, 3, &mine)?;
        } else {
            assert_eq!(world.recv_obj::<Settings>(0, 3)?.0, settings(0));
        }
        Ok(())
    });
}
