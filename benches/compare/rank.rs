//! What a rank of ours measures. Rank 0 prints lines `figure NAME OURS [LIMIT]`; times are ns,
//! rates bytes/ns, which is GB/s. `benches/rivals/rival.c` does the same: change both or neither.

use crate::batches::{Batches, SEED, median, nanoseconds, together};
use crate::limits::{Flags, Segment};
use crate::loops::{self, Memory, Shard, WORDS, content, xorshift};
use crate::{batch, collectives, stencil, steps, whole};
use pgas::{Dist, GlobalArray, Result, World};
use std::cell::RefCell;
use std::hint::black_box;
use std::time::{Duration, Instant};

pub(crate) fn run(words: &[String]) -> crate::Result<()> {
    let [ms, count, sections @ ..] = words else {
        return Err("a rank needs the length of a batch and their number".into());
    };
    let batches = Batches {
        ns: ms.parse::<f64>().map_err(|error| error.to_string())? * 1e6,
        count: count
            .parse()
            .map_err(|error: std::num::ParseIntError| error.to_string())?,
    };
    World::run(|world| {
        for section in sections {
            match section.as_str() {
                "element" => element(world, batches)?,
                "layouts" => layouts(world, batches)?,
                "bulk" => bulk(world, batches)?,
                "network" => network(world, batches)?,
                "busy" => busy(world)?,
                "barrier" => barrier(world, batches)?,
                "batch" => batch::memory(world, batches)?,
                "stencil" => stencil::run(world, batches)?,
                "whole" => whole::run(world, batches)?,
                "collectives" => collectives::run(world, batches)?,
                _ if section.starts_with(crate::REMOTE) => {
                    let count = section[crate::REMOTE.len()..].parse();
                    batch::remote(world, batches, count.unwrap_or(100_000))?;
                }
                _ => world.abort(2, &format!("no section {section}")),
            }
        }
        Ok(())
    })
    .map_err(|error: pgas::Error| error.to_string())
}

/// Rank 1's shard of an array of ours and, of the same size and content, of plain memory.
fn shards(world: &World) -> Result<(GlobalArray<u64>, Segment)> {
    let array = GlobalArray::from_fn(world, world.size() * WORDS, |index| content(index % WORDS))?;
    let segment = Segment::create(world, 1, WORDS * 8)?;
    if world.rank() == 1 {
        for index in 0..WORDS {
            segment.words().put(index, content(index))?;
        }
    }
    world.barrier()?;
    if world.rank() == 0 {
        // A process's first access to a page costs more than what is measured here.
        let ours = Shard {
            array: &array,
            first: WORDS,
        };
        for index in (0..WORDS).step_by(512) {
            ours.put(index, content(index))?;
            segment.words().put(index, content(index))?;
        }
    }
    world.barrier()?;
    Ok((array, segment))
}

fn element(world: &World, batches: Batches) -> Result<()> {
    let (array, segment) = shards(world)?;
    if world.rank() == 0 {
        let ours = Shard {
            array: &array,
            first: WORDS,
        };
        let plain = segment.words();
        macro_rules! figures {
            ($($name:ident),*) => {$(
                let (a, b) = batches.pair(
                    |n, seed| loops::$name(ours, n, seed),
                    |n, seed| loops::$name(plain, n, seed),
                )?;
                println!("figure {} {a} {b}", stringify!($name));
            )*};
        }
        figures!(
            get_random,
            get_chain,
            get_cached,
            get_chain_cached,
            put_random,
            put_flush_random,
            put_cached,
            fetch_add_random,
            fetch_add_cached
        );
        macro_rules! instructions {
            ($($name:ident: $figure:literal),*) => {$(
                let a = steps::per_round(|n| loops::$name(ours, n, SEED))?;
                let b = steps::per_round(|n| loops::$name(plain, n, SEED))?;
                if let (Some(a), Some(b)) = (a, b) {
                    println!("figure {} {a} {b}", $figure);
                }
            )*};
        }
        instructions!(
            get_cached: "get_instructions",
            put_cached: "put_instructions",
            fetch_add_cached: "fetch_add_instructions"
        );
    }
    world.barrier()
}

/// Layouts that are not one dimension in blocks: 512 words of the other rank in a matrix, and in
/// an array dealt out in turn.
fn layouts(world: &World, batches: Batches) -> Result<()> {
    let plane = GlobalArray::<u64, 2>::from_fn(world, [32, 32], |[i, j]| content(i % 16 * 32 + j))?;
    let cyclic = GlobalArray::<u64>::builder(world, 1024)
        .dist([Dist::Cyclic])
        .from_fn(|index| content(index / 2))?;
    let segment = Segment::create(world, 1, WORDS * 8)?;
    if world.rank() == 1 {
        (0..512).try_for_each(|index| segment.words().put(index, content(index)))?;
    }
    world.barrier()?;
    if world.rank() == 0 {
        let plain = segment.words();
        let in_plane = |k: usize| plane.get([16 + k / 32, k % 32]);
        let in_cyclic = |k: usize| cyclic.get(2 * k + 1);
        let in_plain = |k: usize| plain.get(k);
        macro_rules! figures {
            ($($get:ident: $time:literal $count:literal),*) => {$(
                let (a, b) = batches.pair(
                    |n, seed| loops::get_by(n, seed, $get),
                    |n, seed| loops::get_by(n, seed, in_plain),
                )?;
                println!("figure {} {a} {b}", $time);
                let a = steps::per_round(|n| loops::get_by(n, SEED, $get))?;
                let b = steps::per_round(|n| loops::get_by(n, SEED, in_plain))?;
                if let (Some(a), Some(b)) = (a, b) {
                    println!("figure {} {a} {b}", $count);
                }
            )*};
        }
        figures!(
            in_plane: "get_plane" "get_plane_instructions",
            in_cyclic: "get_cyclic" "get_cyclic_instructions"
        );
    }
    world.barrier()
}

fn bulk(world: &World, batches: Batches) -> Result<()> {
    let (array, segment) = shards(world)?;
    if world.rank() == 0 {
        let ours = Shard {
            array: &array,
            first: WORDS,
        };
        let plain = segment.words();
        for (name, bytes) in [("4k", 4 << 10), ("1m", 1 << 20), ("16m", 16 << 20)] {
            let count = bytes / 8;
            let rate = |(ours, plain): (f64, f64)| (bytes as f64 / ours, bytes as f64 / plain);
            // One buffer for both, and on a page's start as the rivals', as where it lies matters.
            let mut buffer = vec![1_u64; count + 4096 / 8];
            let skip = buffer.as_ptr().align_offset(4096);
            let buffer = RefCell::new(&mut buffer[skip..skip + count]);
            let (a, b) = rate(batches.pair(
                |n, _| loops::get_into(ours, n, &mut buffer.borrow_mut()).map(|()| 0),
                |n, _| loops::get_into(plain, n, &mut buffer.borrow_mut()).map(|()| 0),
            )?);
            println!("figure get_into_{name} {a} {b}");
            let (a, b) = rate(batches.pair(
                |n, _| loops::get_range(ours, n, count).map(|()| 0),
                |n, _| loops::get_range(plain, n, count).map(|()| 0),
            )?);
            println!("figure get_range_{name} {a} {b}");
            let (a, b) = rate(batches.pair(
                |n, _| loops::put_range(ours, n, &buffer.borrow()).map(|()| 0),
                |n, _| loops::put_range(plain, n, &buffer.borrow()).map(|()| 0),
            )?);
            println!("figure put_range_{name} {a} {b}");
        }
    }
    world.barrier()
}

/// What is worth measuring where an operation takes microseconds. There is no limit beside it.
fn network(world: &World, batches: Batches) -> Result<()> {
    let array = GlobalArray::from_fn(world, world.size() * WORDS, |index| content(index % WORDS))?;
    if world.rank() == 0 {
        let ours = Shard {
            array: &array,
            first: WORDS,
        };
        let ns = batches.one(|n, seed| loops::get_random(ours, n, seed))?;
        println!("figure get_random {ns}");
        let ns = batches.one(|n, seed| loops::put_flush_random(ours, n, seed))?;
        println!("figure put_flush_random {ns}");
        let ns = batches.one(|n, seed| loops::fetch_add_random(ours, n, seed))?;
        println!("figure fetch_add_random {ns}");
        let mut buffer = vec![1_u64; (1 << 20) / 8];
        let ns = batches.one(|n, _| loops::get_into(ours, n, &mut buffer).map(|()| 0))?;
        println!(
            "figure get_into_1m {}",
            size_of_val(&buffer[..]) as f64 / ns
        );
    }
    world.barrier()
}

/// Most operations that [`busy`] times, one by one.
const BUSY_MOST: usize = 1 << 20;

/// Rank 0 reads for 200 ms while the others compute for 300 ms without calling the library.
fn busy(world: &World) -> Result<()> {
    let array = GlobalArray::from_fn(world, world.size() * WORDS, |index| content(index % WORDS))?;
    for name in ["get_busy", "fetch_add_busy"] {
        world.barrier()?;
        let begin = Instant::now();
        if world.rank() == 0 {
            while begin.elapsed() < Duration::from_millis(20) {}
            let first = Instant::now();
            let (mut last, mut x) = (first, SEED);
            let mut took = Vec::with_capacity(BUSY_MOST);
            while last - begin < Duration::from_millis(220) && took.len() < BUSY_MOST {
                x = xorshift(x);
                let index = x as usize % WORDS;
                let value = match name {
                    "get_busy" => array.get(WORDS + index)?,
                    _ => array.fetch_add(WORDS + index, 0)?,
                };
                let end = Instant::now();
                assert_eq!(value, content(index), "{name}");
                took.push(nanoseconds(end - last));
                last = end;
            }
            println!(
                "figure {name} {}",
                nanoseconds(last - first) / took.len() as f64
            );
            println!("figure {name}_median {}", median(&mut took));
            println!("figure {name}_worst {}", took[took.len() - 1]);
        } else {
            let mut work = 1.0_f64;
            while begin.elapsed() < Duration::from_millis(300) {
                for _ in 0..1000 {
                    work = black_box(work * 1.000_000_1);
                }
            }
        }
        world.barrier()?;
    }
    Ok(())
}

/// All ranks together. The number of rounds is found by doubling; all do the same.
fn barrier(world: &World, batches: Batches) -> Result<()> {
    let segment = Segment::create(world, 0, 4096)?;
    let flags = Flags::new(&segment, world.size());
    let ours = |n: u64| (0..n).try_for_each(|_| world.barrier());
    let plain = |n: u64| {
        (0..n).for_each(|_| flags.barrier());
        Ok(())
    };
    ours(20)?;
    let a = together(world, batches, ours)?;
    let b = together(world, batches, plain)?;
    let (mut times_a, mut times_b) = (Vec::new(), Vec::new());
    for batch in 0..batches.count {
        for turn in 0..2 {
            let (times, n, work): (_, _, &dyn Fn(u64) -> Result<()>) = if batch % 2 == turn {
                (&mut times_a, a, &ours)
            } else {
                (&mut times_b, b, &plain)
            };
            world.barrier()?;
            let begin = Instant::now();
            work(n)?;
            times.push(nanoseconds(begin.elapsed()) / n as f64);
        }
    }
    if world.rank() == 0 {
        println!(
            "figure barrier {} {}",
            median(&mut times_a),
            median(&mut times_b)
        );
    }
    world.barrier()
}
