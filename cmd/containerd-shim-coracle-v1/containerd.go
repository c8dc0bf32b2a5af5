package main

import (
	"errors"
	"fmt"
)

func containerdCommand(args []string) error {
	return fmt.Errorf("unknown command %q: %w", args, errors.ErrUnsupported)
}
