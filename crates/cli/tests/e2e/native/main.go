// A Go program for the tests of native sockets: many goroutines echo over connections of their own.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

func ask(address string) error {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer connection.Close()
	if connection.RemoteAddr().String() != address {
		return fmt.Errorf("another peer: %v", connection.RemoteAddr())
	}
	word := []byte("a word")
	if _, err := connection.Write(word); err != nil {
		return err
	}
	came := make([]byte, len(word))
	if _, err := io.ReadFull(connection, came); err != nil {
		return err
	}
	if string(came) != string(word) {
		return fmt.Errorf("came %q", came)
	}
	return nil
}

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	results := make(chan error)
	for index := 0; index < count; index++ {
		go func() { results <- ask(os.Args[1]) }()
	}
	for index := 0; index < count; index++ {
		if err := <-results; err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	fmt.Println("echoed", count)
}
