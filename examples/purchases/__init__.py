"""Will this customer buy again within 60 days? 69,659 real purchases, a model that answers at each of them."""
