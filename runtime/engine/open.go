package engine

import "fmt"

// Names are those that Open knows, the default first.
var Names = []string{Name, Libcontainer}

// Open makes the engine of a name; "" is the default. Both drive each other's containers.
func Open(name string, cfg Config) (*Engine, error) {
	switch name {
	case "", Name:
		return New(cfg)
	case Libcontainer:
		e, err := New(cfg)
		if err != nil {
			return nil, err
		}
		e.onlyLoad = true
		return e, nil
	}
	return nil, fmt.Errorf("engine %q is unknown, use one of %q", name, Names)
}
