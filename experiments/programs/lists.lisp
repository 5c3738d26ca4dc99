;; Lists in a hash table of MIB mebibytes: lists.lisp MIB
(let* ((count (floor (* (parse-integer (car (last sb-ext:*posix-argv*))) 1048576) 300))
       (all (make-hash-table))
       (sum 0))
  (dotimes (i count)
    (setf (gethash i all) (list i (* 3 i) (make-string 20 :initial-element #\a))))
  (dotimes (i count)
    (setf sum (mod (+ (* 31 sum) (second (gethash i all))) 1000000007)))
  (format t "~a ~a~%" count sum))
