//! A buffer that was lent to a scope is the scope's until its end.

use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let array = GlobalArray::<u64>::new(world, 10)?;
        let mut buffer = [0; 5];
        world.scope(|scope| {
            scope.get_into(&array, 0, &mut buffer)?;
            println!("{}", buffer[0]);
            Ok(())
        })
    })
}
