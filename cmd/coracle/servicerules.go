package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// removeServiceRules removes the nftables table that the cluster process leaves when it ends, so that
// connections to Services go on while it is restarted.
func removeServiceRules(port int) error {
	name := "coracle-services-" + strconv.Itoa(port)
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("remove rules of Services: %w", err)
	}
	table, err := c.ListTableOfFamily(name, nftables.TableFamilyINet)
	if err != nil {
		return nil // there is no such table, or no nftables at all
	}
	c.DelTable(table)
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove rules of Services: nftables table %s: %w", name, err)
	}
	return nil
}
