//! Padding would leak.
use pgas::{GlobalArray, World};

#[derive(Clone, Copy)]
#[repr(C)]
struct Padded {
    flag: u8,
    value: u32,
}

fn main() -> pgas::Result<()> {
    World::run(|world| GlobalArray::<Padded>::new(world, 10)?.close())
}
