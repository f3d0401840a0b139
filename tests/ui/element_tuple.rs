//! A tuple has no fixed layout.
use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| GlobalArray::<(u8, u32)>::new(world, 10)?.close())
}
