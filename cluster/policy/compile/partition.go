package compile

// cell is a set of members, which are pods or ends of pods, that rules treat alike. It has a number
// in the kernel.
type cell[M comparable, T any] struct {
	number  uint32
	fixed   bool   // the number is not one of partition.numbers
	key     string // of what its members have in common
	members map[M]bool
	data    T
}

// partition divides pods, or ends of pods, into cells. Those without a key are in none.
type partition[M comparable, T any] struct {
	cells   map[string]*cell[M, T]
	numbers numbers
	// holders are how many cells have a number; 0 is that of those that got none.
	holders map[uint32]int
	of      func(M) **cell[M, T]
	// wish is the number that a member's cell had in the kernel when this process started, 0 for
	// none.
	wish func(M) uint32
	// begin is called with a cell that has new data, end with one whose data is over.
	begin, end func(*cell[M, T])
}

func newPartition[M comparable, T any](most uint32) partition[M, T] {
	return partition[M, T]{cells: map[string]*cell[M, T]{}, holders: map[uint32]int{}, numbers: numbers{most: most, used: map[uint32]bool{}}}
}

// place is where a pod, or an end of one, belongs.
type place[T any] struct {
	key  string
	data T
	// number, if not 0, is the cell's.
	number uint32
}

// assign puts members where they belong, and returns those that are in another cell then. When all
// members of a cell have another key, the cell keeps its number: the kernel has an element for each
// address of each pod, and none changes.
func (d *partition[M, T]) assign(places map[M]place[T]) (moved []M) {
	type move struct {
		from *cell[M, T]
		key  string
	}
	together := map[move]int{}
	for p, to := range places {
		if from := *d.of(p); from != nil && from.key != to.key {
			together[move{from, to.key}]++
		}
	}
	for p, to := range places {
		from := *d.of(p)
		if from == nil || to.key == "" || from.key == to.key || from.fixed || to.number != 0 ||
			d.cells[to.key] != nil || together[move{from, to.key}] != len(from.members) {
			continue
		}
		d.end(from)
		delete(d.cells, from.key)
		from.key, from.data = to.key, to.data
		d.cells[to.key] = from
		d.begin(from)
	}
	put := func(all bool) {
		for p, to := range places {
			if (all || d.wish(p) != 0) && d.put(p, to) {
				moved = append(moved, p)
			}
		}
	}
	put(false) // before others get the number that it wishes
	put(true)
	return moved
}

// put puts a member where it belongs and returns whether it was elsewhere.
func (d *partition[M, T]) put(p M, to place[T]) bool {
	at := d.of(p)
	from := *at
	if from == nil && to.key == "" || from != nil && from.key == to.key {
		return false
	}
	*at = nil
	if to.key != "" {
		c := d.cells[to.key]
		if c == nil {
			c = &cell[M, T]{number: to.number, fixed: to.number != 0, key: to.key, members: map[M]bool{}, data: to.data}
			if !c.fixed {
				c.number = d.numbers.take(d.wish(p))
			}
			d.cells[to.key] = c
			d.holders[c.number]++
			d.begin(c)
		}
		c.members[p] = true
		*at = c
	}
	if from != nil {
		if delete(from.members, p); len(from.members) == 0 {
			d.end(from)
			delete(d.cells, from.key)
			d.holders[from.number]--
			if !from.fixed {
				d.numbers.free(from.number)
			}
		}
	}
	return true
}

// numbers are those from 1 to most.
type numbers struct {
	last, most uint32
	used       map[uint32]bool
	freed      []uint32 // some may be used again
}

// take returns a number that is free, the wished one if it is; 0 if there is none.
func (n *numbers) take(wish uint32) uint32 {
	if wish != 0 && wish <= n.most && !n.used[wish] {
		n.used[wish] = true
		return wish
	}
	for len(n.freed) > 0 {
		i := len(n.freed) - 1
		number := n.freed[i]
		n.freed = n.freed[:i]
		if !n.used[number] {
			n.used[number] = true
			return number
		}
	}
	for n.last < n.most {
		n.last++
		if !n.used[n.last] {
			n.used[n.last] = true
			return n.last
		}
	}
	return 0
}

func (n *numbers) free(number uint32) {
	if number == 0 {
		return
	}
	delete(n.used, number)
	if number <= n.last { // the others are still to come
		n.freed = append(n.freed, number)
	}
}
