package peer

import (
	"maps"
	"slices"
	"time"
)

// sightings are the nodes that have asked this one for blobs. In larger clusters a node asks only
// some of the others, but all that pull an image ask the same ones, which tell each of the others.
type sightings struct {
	byBlob map[string][]sighting // by repository and digest
	swept  time.Time             // when what is too old was deleted
}

type sighting struct {
	name string
	at   time.Time
}

const (
	sightedFor = time.Minute
	maxSighted = 4096 // blobs
	// Of each blob two kinds of nodes are remembered: the first ones, which may have it, and those
	// whose turn it would be. So of any number of nodes that ask at the same time, all learn of one
	// that fetches.
	firstSighted, bestSighted = 2, 2
	maxOthers                 = 16 // nodes in an answer
)

// note remembers that a node asks for a blob, and returns the other nodes that have asked for it.
func (s *sightings) note(repository, blob, name string, now time.Time) (others []string) {
	s.sweep(now)
	key := repository + "@" + blob
	before := s.byBlob[key]
	if before == nil && len(s.byBlob) >= maxSighted {
		clear(s.byBlob) // nodes that still wait ask again
	}
	var after []sighting
	known := false
	for _, o := range before {
		switch {
		case o.name == name:
			o.at, known = now, true
		case o.old(now):
			continue
		default:
			others = append(others, o.name)
		}
		after = append(after, o)
	}
	if !known {
		after = append(after, sighting{name, now})
	}
	if len(after) > firstSighted+bestSighted {
		worst := firstSighted
		for i := firstSighted; i < len(after); i++ {
			if weight(blob, after[i].name) < weight(blob, after[worst].name) {
				worst = i
			}
		}
		after = slices.Delete(after, worst, worst+1)
	}
	if s.byBlob == nil {
		s.byBlob = map[string][]sighting{}
	}
	s.byBlob[key] = after
	return others
}

func (o sighting) old(now time.Time) bool { return now.Sub(o.at) > sightedFor }

// sweep deletes blobs that no node has asked for lately.
func (s *sightings) sweep(now time.Time) {
	if now.Sub(s.swept) <= sightedFor {
		return
	}
	s.swept = now
	maps.DeleteFunc(s.byBlob, func(_ string, seen []sighting) bool {
		return !slices.ContainsFunc(seen, func(o sighting) bool { return !o.old(now) })
	})
	if len(s.byBlob) == 0 {
		s.byBlob = nil // a map never shrinks
	}
}
