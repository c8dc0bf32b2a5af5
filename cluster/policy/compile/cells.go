package compile

// cell is a set of pods that rules treat alike, which has a number in the kernel.
type cell[T any] struct {
	number uint32
	key    string // of what its pods have in common
	pods   map[*pod]bool
	data   T
}

// division divides pods into cells. Pods without a key are in none.
type division[T any] struct {
	cells   map[string]*cell[T]
	numbers numbers
	// holders are how many cells have a number; 0 is that of those that got none.
	holders map[uint32]int
	of      func(*pod) **cell[T]
	// wish is the number that a pod's cell had in the kernel when this process started, 0 for none.
	wish func(*pod) uint32
	// begin is called with a cell that has new data, end with one whose data is over.
	begin, end func(*cell[T])
}

func newDivision[T any](most uint32) division[T] {
	return division[T]{cells: map[string]*cell[T]{}, holders: map[uint32]int{}, numbers: numbers{most: most, used: map[uint32]bool{}}}
}

// place is where a pod belongs.
type place[T any] struct {
	key  string
	data T
}

// assign puts pods where they belong, and returns those that are in another cell then. When all
// pods of a cell have another key, the cell keeps its number: the kernel has an element for each
// address of each pod, and none changes.
func (d *division[T]) assign(places map[*pod]place[T]) (moved []*pod) {
	type move struct {
		from *cell[T]
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
		if from == nil || to.key == "" || from.key == to.key || d.cells[to.key] != nil || together[move{from, to.key}] != len(from.pods) {
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

// put puts a pod where it belongs and returns whether it was elsewhere.
func (d *division[T]) put(p *pod, to place[T]) bool {
	at := d.of(p)
	from := *at
	if from == nil && to.key == "" || from != nil && from.key == to.key {
		return false
	}
	*at = nil
	if to.key != "" {
		c := d.cells[to.key]
		if c == nil {
			c = &cell[T]{number: d.numbers.take(d.wish(p)), key: to.key, pods: map[*pod]bool{}, data: to.data}
			d.cells[to.key] = c
			d.holders[c.number]++
			d.begin(c)
		}
		c.pods[p] = true
		*at = c
	}
	if from != nil {
		if delete(from.pods, p); len(from.pods) == 0 {
			d.end(from)
			delete(d.cells, from.key)
			d.holders[from.number]--
			d.numbers.free(from.number)
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
