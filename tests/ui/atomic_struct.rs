//! There is no atomic of 12 bytes.
use pgas::{GlobalArray, World};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Triple([f32; 3]);

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let array = GlobalArray::<Triple>::new(world, 10)?;
        array.swap(3, Triple([0.0; 3]))?;
        Ok(())
    })
}
